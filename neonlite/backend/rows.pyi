# Written by `python -m neonlite.backend.stub` from the op table.
from collections.abc import Callable
from typing import Any

from neonlite.ops import Op

def method_of(op: Op) -> Callable[..., Any]: ...

class Rows:
    def absolute(self, a: Any, out: Any = None) -> Any:
        """Return |x|."""
    def add(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return x + y."""
    def argmax(self, a: Any, axis: Any = 1, out: Any = None, keepdims: 'bool' = True) -> Any:
        """Return the place of the largest element, the first of equals over one axis, several (a tuple), or all (None)."""
    def argmin(self, a: Any, axis: Any = 1, out: Any = None, keepdims: 'bool' = True) -> Any:
        """Return the place of the smallest element, the first of equals over one axis, several (a tuple), or all (None)."""
    def divide(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return x / y."""
    def dot(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the product of two matrices."""
    def equal(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return 1 where x equals y, else 0."""
    def exp(self, a: Any, out: Any = None) -> Any:
        """Return e^x."""
    def exp2(self, a: Any, out: Any = None) -> Any:
        """Return 2^x."""
    def fabs(self, a: Any, out: Any = None) -> Any:
        """Return |x|."""
    def finite(self, a: Any, out: Any = None) -> Any:
        """Return 1 where x is neither infinite nor NaN, else 0."""
    def greater(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return 1 where x > y, else 0."""
    def greater_equal(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return 1 where x >= y, else 0."""
    def less(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return 1 where x < y, else 0."""
    def less_equal(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return 1 where x <= y, else 0."""
    def log(self, a: Any, out: Any = None) -> Any:
        """Return ln x."""
    def log2(self, a: Any, out: Any = None) -> Any:
        """Return log2 x."""
    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the products of two stacks of matrices."""
    def max(self, a: Any, axis: Any = None, out: Any = None, keepdims: 'bool' = True) -> Any:
        """Return the largest element over one axis, several (a tuple), or all (None)."""
    def maximum(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the larger of x and y."""
    def min(self, a: Any, axis: Any = None, out: Any = None, keepdims: 'bool' = True) -> Any:
        """Return the smallest element over one axis, several (a tuple), or all (None)."""
    def minimum(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the smaller of x and y."""
    def multiply(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return x * y."""
    def negative(self, a: Any, out: Any = None) -> Any:
        """Return -x."""
    def not_equal(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return 1 where x differs from y, else 0."""
    def power(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return x^y."""
    def rint(self, a: Any, out: Any = None) -> Any:
        """Return the whole number nearest to x; halves go to the even one."""
    def safelog(self, a: Any, out: Any = None) -> Any:
        """Return ln max(x, e^-50)."""
    def sgn(self, a: Any, out: Any = None) -> Any:
        """Return the sign of x: -1, 0 or 1."""
    def sig(self, a: Any, out: Any = None) -> Any:
        """Return 1 / (1 + e^-x)."""
    def sqrt(self, a: Any, out: Any = None) -> Any:
        """Return x^(1/2)."""
    def square(self, a: Any, out: Any = None) -> Any:
        """Return x^2."""
    def stop_gradient(self, a: Any, out: Any = None) -> Any:
        """Return x, a constant to every derivative."""
    def subtract(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return x - y."""
    def sum(self, a: Any, axis: Any = None, out: Any = None, keepdims: 'bool' = True) -> Any:
        """Return the sum of the elements over one axis, several (a tuple), or all (None)."""
    def tanh(self, a: Any, out: Any = None) -> Any:
        """Return the hyperbolic tangent of x."""
    def true_divide(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return x / y."""
