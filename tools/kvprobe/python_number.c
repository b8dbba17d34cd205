/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/python_number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIGITS   17  /* enough for any double */
#define FIXED_MAX    400 /* the largest double written out, with its decimals */
#define POINT_LOWEST -3  /* where the decimal point may stand, counted from the first digit, */
#define POINT_MOST   16  /* for a number to be written without an exponent */

double python_round(double value, int digits)
{
	char text[FIXED_MAX];
	if (!isfinite(value))
		return value;
	/* printf writes the nearest decimal to the binary value itself; a tie, which is exact there, goes to even */
	snprintf(text, sizeof(text), "%.*f", digits, value);
	return strtod(text, NULL);
}

/* The fewest significant digits that read back, without sign and point; returns the exponent of the first. */
static int shortest_digits(double value, char digits[MAX_DIGITS + 1])
{
	char text[MAX_DIGITS + 16];
	for (int n = 1; n <= MAX_DIGITS; n++) {
		snprintf(text, sizeof(text), "%.*e", n - 1, value);
		if (strtod(text, NULL) == value) /* NOLINT: equality is meant */
			break;
	}
	size_t n = 0;
	const char *at = text;
	for (; *at && *at != 'e'; at++)
		if (*at >= '0' && *at <= '9')
			digits[n++] = *at;
	digits[n] = '\0';
	return atoi(at + 1);
}

static void write_exponent(char *out, size_t size, const char *sign, const char *digits, int exponent)
{
	snprintf(out, size, "%s%c%s%se%c%02d", sign, digits[0], digits[1] ? "." : "", digits + 1,
	         exponent < 0 ? '-' : '+', abs(exponent));
}

/* point: how many digits stand before the decimal point; may be negative. */
static void write_fixed(char *out, size_t size, const char *sign, const char *digits, int point)
{
	static const char zeros[] = "0000000000000000";
	int n = (int)strlen(digits);
	if (point <= 0)
		snprintf(out, size, "%s0.%.*s%s", sign, -point, zeros, digits);
	else if (point < n)
		snprintf(out, size, "%s%.*s.%s", sign, point, digits, digits + point);
	else
		snprintf(out, size, "%s%s%.*s.0", sign, digits, point - n, zeros);
}

void python_repr(double value, char out[PYTHON_NUMBER_MAX])
{
	char digits[MAX_DIGITS + 1];
	const char *sign = signbit(value) && !isnan(value) ? "-" : "";
	if (!isfinite(value)) {
		snprintf(out, PYTHON_NUMBER_MAX, "%s%s", sign, isnan(value) ? "nan" : "inf");
		return;
	}
	int point = shortest_digits(fabs(value), digits) + 1;
	if (point < POINT_LOWEST || point > POINT_MOST)
		write_exponent(out, PYTHON_NUMBER_MAX, sign, digits, point - 1);
	else
		write_fixed(out, PYTHON_NUMBER_MAX, sign, digits, point);
}
