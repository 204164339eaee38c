"""Execution plans: steps, stages, memory, layouts, and how a plan is run."""
