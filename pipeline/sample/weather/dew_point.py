"""The dew point: the temperature at which the air's vapour starts to condense."""

from math import log

# Magnus coefficients over water, -45 to 60 degrees Celsius
A, B = 17.62, 243.12


def dew_point_c(air_c: float, humidity_percent: float) -> float:
    """Return the dew point in degrees Celsius from air temperature and relative humidity."""
    gamma = log(humidity_percent / 100) + A * air_c / (B + air_c)
    return B * gamma / (A - gamma)


def cloud_base_m(air_c: float, humidity_percent: float) -> float:
    """Return the height of the base of fair-weather clouds: 125 m for each degree of spread."""
    return 125 * (air_c - dew_point_c(air_c, humidity_percent))
