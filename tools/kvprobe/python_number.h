/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers rounded and written as Python does, for text that is to equal what a Python program prints. */
#ifndef KVPROBE_PYTHON_NUMBER_H
#define KVPROBE_PYTHON_NUMBER_H

#include <stddef.h>

#define PYTHON_NUMBER_MAX 40 /* bytes of any repr, its end included */

/* round(value, digits): correctly rounded decimal, exact ties to even. digits: 0 to 22. */
double python_round(double value, int digits);
/* repr(value), the shortest text that reads back as the same double. Always terminated. */
void python_repr(double value, char out[PYTHON_NUMBER_MAX]);

#endif
