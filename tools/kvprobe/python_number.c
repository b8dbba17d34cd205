/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvprobe/python_number.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIGITS   17 /* enough for any double */
#define DECIMAL_MAX  (MAX_DIGITS + 16)
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

/* The decimal of as many digits that is next above, in "d.ddde+xx" form. False: it has another exponent. */
static bool raise_last_digit(char *text)
{
	for (char *at = strchr(text, 'e') - 1; at >= text; at--) {
		if (*at == '.')
			continue;
		if (*at != '9') {
			++*at;
			return true;
		}
		*at = '0';
	}
	return false;
}

/* The nearest decimal of n digits, or the next above it: does one of them read back as the value? A power of two is
 * nearer to the double below than to the one above, so that there the farther of the two may be the one. */
static bool reads_back(char text[DECIMAL_MAX], int n, double value)
{
	snprintf(text, DECIMAL_MAX, "%.*e", n - 1, value);
	if (strtod(text, NULL) == value)
		return true;
	return raise_last_digit(text) && strtod(text, NULL) == value;
}

/* The fewest significant digits that read back, without the point; returns the exponent of the first. value >= 0. */
static int shortest_digits(double value, char digits[MAX_DIGITS + 1])
{
	char text[DECIMAL_MAX];
	int n = 1;
	while (n < MAX_DIGITS && !reads_back(text, n, value))
		n++;
	if (n == MAX_DIGITS)
		snprintf(text, sizeof(text), "%.*e", MAX_DIGITS - 1, value);
	char *end = digits;
	const char *at = text;
	for (; *at != 'e'; at++)
		if (*at != '.')
			*end++ = *at;
	*end = '\0';
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
