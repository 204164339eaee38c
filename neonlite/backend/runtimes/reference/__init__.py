"""The reference executor: any namespace of the array-API standard, op by op."""
