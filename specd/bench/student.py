"""Quantiles of Student's t distribution for any number of degrees of freedom, from the standard library alone."""

import math

__all__ = ["quantile"]

_TINY = 1e-300


def quantile(p: float, df: float) -> float:
    """Return t with P(T <= t) = p, for 0 < p < 1 and df > 0; exact to about 1e-9."""
    if not 0 < p < 1 or not df > 0:
        raise ValueError(f"no t quantile for p={p}, df={df}")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -quantile(1 - p, df)
    low, high = 0.0, 1.0
    while _cdf(high, df) < p:
        low, high = high, high * 2
    t = (low + high) / 2
    # Newton's steps, kept inside a bracket that shrinks.
    for _ in range(100):
        missing = p - _cdf(t, df)
        low, high = (t, high) if missing > 0 else (low, t)
        step = missing / _density(t, df)
        nearer = t + step if low < t + step < high else (low + high) / 2
        if abs(nearer - t) <= 1e-12 * t:
            return nearer
        t = nearer
    return t


def _density(t: float, df: float) -> float:
    log_front = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    return math.exp(log_front - (df + 1) / 2 * math.log1p(t * t / df))


def _cdf(t: float, df: float) -> float:
    """P(T <= t) for t >= 0, by the regularised incomplete beta function."""
    return 1 - _beta(df / (df + t * t), df / 2, 0.5) / 2


def _beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta I_x(a, b) by its continued fraction (Lentz's method; DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away(1 + term * d)
            c = _away(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a


def _away(value: float) -> float:
    """Keep a denominator away from 0."""
    return value if abs(value) > _TINY else _TINY
