/* SPDX-License-Identifier: Apache-2.0 */
#include "store/base/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <strings.h>

#include "kvstore_status.h"
#include "store/base/log.h"

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static const char *skip_space(const char *text)
{
	while (is_space(*text))
		text++;
	return text;
}

/* Digits at *text; moves *text behind them. False: no digit, or beyond 64 bits. */
static bool take_digits(const char **text, uint64_t *out)
{
	const char *at = *text;
	uint64_t value = 0;
	if (!is_digit(*at))
		return false;
	for (; is_digit(*at); at++) {
		if (__builtin_mul_overflow(value, 10u, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
			return false;
	}
	*text = at;
	*out = value;
	return true;
}

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit size_units[] = {{"", 1},
                                         {"b", 1},
                                         {"k", 1ull << 10},
                                         {"kb", 1ull << 10},
                                         {"kib", 1ull << 10},
                                         {"m", 1ull << 20},
                                         {"mb", 1ull << 20},
                                         {"mib", 1ull << 20},
                                         {"g", 1ull << 30},
                                         {"gb", 1ull << 30},
                                         {"gib", 1ull << 30},
                                         {"t", 1ull << 40},
                                         {"tb", 1ull << 40},
                                         {"tib", 1ull << 40},
                                         {NULL, 0}};

static const struct unit duration_units[] = {{"", 1},      {"ms", 1},      {"s", 1000},
                                             {"m", 60000}, {"h", 3600000}, {NULL, 0}};

/* The factor of the unit that is all of text but white space around it; 0: none. */
static uint64_t find_unit(const struct unit *units, const char *text)
{
	text = skip_space(text);
	size_t len = 0;
	while (text[len] && !is_space(text[len]))
		len++;
	if (*skip_space(text + len))
		return 0;
	for (; units->name; units++) {
		if (strncasecmp(units->name, text, len) == 0 && units->name[len] == '\0')
			return units->factor;
	}
	return 0;
}

/* number [. fraction] unit; a fraction must be of a unit greater than 1 and is rounded down. */
static int parse_with_unit(uint64_t *out, const char *text, const struct unit *units)
{
	uint64_t whole, fraction = 0, scale = 1;
	text = skip_space(text);
	if (!take_digits(&text, &whole))
		return KV_INVALID_PARAMS;
	bool has_fraction = *text == '.';
	if (has_fraction) {
		text++;
		if (!is_digit(*text))
			return KV_INVALID_PARAMS;
		for (; is_digit(*text); text++) {
			if (scale < 1000000) { /* digits below a millionth do not count */
				fraction = fraction * 10 + (uint64_t)(*text - '0');
				scale *= 10;
			}
		}
	}
	uint64_t factor = find_unit(units, text), value;
	if (factor == 0 || (has_fraction && factor == 1) || __builtin_mul_overflow(whole, factor, &value) ||
	    __builtin_add_overflow(value, (uint64_t)((unsigned __int128)fraction * factor / scale), &value))
		return KV_INVALID_PARAMS;
	*out = value;
	return KV_OK;
}

int kv_parse_size(uint64_t *bytes, const char *text)
{
	return parse_with_unit(bytes, text, size_units);
}

int kv_parse_duration_ms(uint64_t *ms, const char *text)
{
	return parse_with_unit(ms, text, duration_units);
}

int kv_parse_u64(uint64_t *out, const char *text)
{
	uint64_t value;
	text = skip_space(text);
	if (!take_digits(&text, &value) || *skip_space(text))
		return KV_INVALID_PARAMS;
	*out = value;
	return KV_OK;
}

static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;
static locale_t c_locale;

static void make_c_locale(void)
{
	c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

int kv_parse_double(double *out, const char *text)
{
	/* A process that embeds the store may have set a locale with another decimal point. */
	pthread_once(&c_locale_once, make_c_locale);
	if (!c_locale)
		return KV_INVALID_PARAMS;
	char *end;
	errno = 0;
	double value = strtod_l(text, &end, c_locale);
	if (end == text || errno == ERANGE || *skip_space(end) || !isfinite(value))
		return KV_INVALID_PARAMS;
	*out = value;
	return KV_OK;
}

int kv_parse_bool(int *out, const char *text)
{
	static const char *const yes[] = {"on", "true", "1", "yes"};
	static const char *const no[] = {"off", "false", "0", "no"};
	for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
		if (strcasecmp(text, yes[i]) == 0) {
			*out = 1;
			return KV_OK;
		}
		if (strcasecmp(text, no[i]) == 0) {
			*out = 0;
			return KV_OK;
		}
	}
	return KV_INVALID_PARAMS;
}

uint64_t kv_env_u64(const char *name, uint64_t fallback, uint64_t min, uint64_t max)
{
	const char *text = getenv(name);
	uint64_t value;
	if (!text || !*text)
		return fallback;
	if (kv_parse_u64(&value, text) || value < min || value > max) {
		kv_warn("%s=%s is not a number from %" PRIu64 " to %" PRIu64 "; using %" PRIu64, name, text, min, max,
		        fallback);
		return fallback;
	}
	return value;
}
