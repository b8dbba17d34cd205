/* SPDX-License-Identifier: Apache-2.0 */
/* Pickling: the state is {"data": {six lists}}, with "overflow" and "row_limit" only where they say something. */
#include "store/python/stats_py.h"

#include <math.h>

#include "store/stats/sketch.h"

#define COUNT_MAX          ((uint64_t)1 << 53) /* beyond what can be recorded; thousands of them can be added up */
#define TIME_BUCKETS       (XFER_TIME_BOUNDS + 1)
#define BYTES_BUCKETS      (XFER_BYTES_BOUNDS + 1)
#define DESCRIPTOR_BUCKETS (XFER_DESCRIPTOR_BOUNDS + 1)

/* --- what is beyond the limit ------------------------------------------------------------------------ */

/* A long double as the sum of two doubles, which say all of its 64 bits. */
static PyObject *pair_of_seconds(long double seconds)
{
	double high = (double)seconds;
	return Py_BuildValue("[dd]", high, (double)(seconds - high));
}

static PyObject *pair_of_sum(unsigned __int128 sum)
{
	return Py_BuildValue("[KK]", (unsigned long long)(sum >> 64), (unsigned long long)sum);
}

/* [bucket, count, bucket, count, ...] */
static PyObject *list_of_counts(const uint64_t *counts)
{
	PyObject *list = PyList_New(0);
	for (uint32_t i = 0; list && i < LOGLIN_BUCKETS; i++) {
		if (counts[i] == 0)
			continue;
		PyObject *bucket = PyLong_FromUnsignedLong(i), *count = PyLong_FromUnsignedLongLong(counts[i]);
		if (!bucket || !count || PyList_Append(list, bucket) != 0 || PyList_Append(list, count) != 0)
			Py_CLEAR(list);
		Py_XDECREF(bucket);
		Py_XDECREF(count);
	}
	return list;
}

static PyObject *list_of_buckets(const uint64_t *counts, uint32_t n)
{
	PyObject *list = PyList_New(0);
	for (uint32_t i = 0; list && i < n; i++) {
		PyObject *count = PyLong_FromUnsignedLongLong(counts[i]);
		if (!count || PyList_Append(list, count) != 0)
			Py_CLEAR(list);
		Py_XDECREF(count);
	}
	return list;
}

static int set_sketch(PyObject *dict, const struct xfer_sketch *sketch)
{
	const struct xfer_histograms *histograms = &sketch->histograms;
	if (stats_set_new(dict, "seconds", pair_of_seconds(sketch->sums.seconds)) != 0 ||
	    stats_set_new(dict, "bytes", pair_of_sum(sketch->sums.bytes)) != 0 ||
	    stats_set_new(dict, "descriptors", pair_of_sum(sketch->sums.descriptors)) != 0 ||
	    stats_set_new(dict, "ns_counts", list_of_counts(sketch->ns)) != 0 ||
	    stats_set_new(dict, "time_buckets", list_of_buckets(histograms->time, TIME_BUCKETS)) != 0 ||
	    stats_set_new(dict, "bytes_buckets", list_of_buckets(histograms->bytes, BYTES_BUCKETS)) != 0)
		return -1;
	return stats_set_new(dict, "descriptors_buckets",
	                     list_of_buckets(histograms->descriptors, DESCRIPTOR_BUCKETS));
}

PyObject *stats_spill_to_dict(const struct xfer_snapshot *spill)
{
	PyObject *dict = PyDict_New();
	unsigned long long failures[XFER_FAILURES];
	for (int f = 0; f < XFER_FAILURES; f++)
		failures[f] = spill->failures[f];
	if (dict &&
	    (stats_set_new(dict, "failures", Py_BuildValue("[KKK]", failures[0], failures[1], failures[2])) != 0 ||
	     (spill->overflow && set_sketch(dict, spill->overflow) != 0)))
		Py_CLEAR(dict);
	return dict;
}

/* --- and back ---------------------------------------------------------------------------------------- */

static int bad_overflow(const char *key)
{
	PyErr_Format(PyExc_ValueError, "'%s' in 'overflow' is not what __getstate__ has made", key);
	return -1;
}

/* The value as a tuple of the length, or of any even length if it is negative; NULL with an exception. */
static PyObject *tuple_of(PyObject *dict, const char *key, Py_ssize_t length)
{
	PyObject *value = PyDict_GetItemString(dict, key);
	if (!value || (!PyList_Check(value) && !PyTuple_Check(value))) {
		bad_overflow(key);
		return NULL;
	}
	PyObject *tuple = PySequence_Tuple(value);
	if (!tuple)
		return NULL;
	Py_ssize_t size = PyTuple_Size(tuple);
	if (length < 0 ? size % 2 == 0 : size == length)
		return tuple;
	Py_DECREF(tuple);
	bad_overflow(key);
	return NULL;
}

/* The item as a u64; only a real int will do, so no Python code runs. */
static int item_u64(PyObject *tuple, Py_ssize_t i, const char *key, uint64_t *out)
{
	PyObject *item = PyTuple_GetItem(tuple, i);
	if (!PyLong_Check(item))
		return bad_overflow(key);
	*out = PyLong_AsUnsignedLongLong(item);
	if (*out != UINT64_MAX || !PyErr_Occurred())
		return 0;
	PyErr_Clear();
	return bad_overflow(key);
}

static int get_seconds(PyObject *dict, long double *out)
{
	PyObject *tuple = tuple_of(dict, "seconds", 2);
	if (!tuple)
		return -1;
	PyObject *high = PyTuple_GetItem(tuple, 0), *low = PyTuple_GetItem(tuple, 1);
	int result = PyFloat_Check(high) && PyFloat_Check(low) ? 0 : bad_overflow("seconds");
	if (result == 0) {
		*out = (long double)PyFloat_AsDouble(high) + PyFloat_AsDouble(low);
		if (!isfinite(*out))
			result = bad_overflow("seconds");
	}
	Py_DECREF(tuple);
	return result;
}

static int get_sum(PyObject *dict, const char *key, unsigned __int128 *out)
{
	uint64_t high = 0, low = 0;
	PyObject *tuple = tuple_of(dict, key, 2);
	if (!tuple)
		return -1;
	int result = item_u64(tuple, 0, key, &high) == 0 ? item_u64(tuple, 1, key, &low) : -1;
	*out = (unsigned __int128)high << 64 | low;
	Py_DECREF(tuple);
	return result;
}

static int add_count(PyObject *tuple, Py_ssize_t i, const char *key, uint64_t *counts, uint64_t *total)
{
	uint64_t bucket, count;
	if (item_u64(tuple, i, key, &bucket) != 0 || item_u64(tuple, i + 1, key, &count) != 0)
		return -1;
	if (bucket >= LOGLIN_BUCKETS || counts[bucket] || count > COUNT_MAX - *total)
		return bad_overflow(key);
	counts[bucket] = count;
	*total += count;
	return 0;
}

static int get_counts(PyObject *dict, const char *key, uint64_t *counts, uint64_t *total)
{
	PyObject *tuple = tuple_of(dict, key, -1);
	int result = tuple ? 0 : -1;
	*total = 0;
	for (Py_ssize_t i = 0; result == 0 && i < PyTuple_Size(tuple); i += 2)
		result = add_count(tuple, i, key, counts, total);
	Py_XDECREF(tuple);
	return result;
}

/* More than so many rows can come to would wrap around where sums are added up. */
static int check_sum(const char *key, unsigned __int128 sum, uint64_t rows, uint64_t most)
{
	return sum <= (unsigned __int128)rows * most ? 0 : bad_overflow(key);
}

/* n counts whose sum is `rows`. */
static int get_buckets(PyObject *dict, const char *key, uint64_t *counts, uint32_t n, uint64_t rows)
{
	PyObject *tuple = tuple_of(dict, key, n);
	uint64_t total = 0;
	int result = tuple ? 0 : -1;
	for (uint32_t i = 0; i < n && result == 0; i++) {
		result = item_u64(tuple, i, key, &counts[i]);
		if (result == 0 && __builtin_add_overflow(total, counts[i], &total))
			result = bad_overflow(key);
	}
	if (result == 0 && total != rows)
		result = bad_overflow(key);
	Py_XDECREF(tuple);
	return result;
}

static int get_sketch(PyObject *dict, struct xfer_sketch *sketch)
{
	struct xfer_histograms *histograms = &sketch->histograms;
	if (get_seconds(dict, &sketch->sums.seconds) != 0 || get_sum(dict, "bytes", &sketch->sums.bytes) != 0 ||
	    get_sum(dict, "descriptors", &sketch->sums.descriptors) != 0 ||
	    get_counts(dict, "ns_counts", sketch->ns, &sketch->rows) != 0 ||
	    check_sum("bytes", sketch->sums.bytes, sketch->rows, INT64_MAX) != 0 ||
	    check_sum("descriptors", sketch->sums.descriptors, sketch->rows, UINT32_MAX) != 0 ||
	    get_buckets(dict, "time_buckets", histograms->time, TIME_BUCKETS, sketch->rows) != 0 ||
	    get_buckets(dict, "bytes_buckets", histograms->bytes, BYTES_BUCKETS, sketch->rows) != 0)
		return -1;
	return get_buckets(dict, "descriptors_buckets", histograms->descriptors, DESCRIPTOR_BUCKETS, sketch->rows);
}

static int get_failures(PyObject *dict, uint64_t failures[XFER_FAILURES])
{
	PyObject *tuple = tuple_of(dict, "failures", XFER_FAILURES);
	int result = tuple ? 0 : -1;
	for (int f = 0; f < XFER_FAILURES && result == 0; f++) {
		result = item_u64(tuple, f, "failures", &failures[f]);
		if (result == 0 && failures[f] > COUNT_MAX)
			result = bad_overflow("failures");
	}
	Py_XDECREF(tuple);
	return result;
}

static int get_spill(PyObject *dict, struct xfer_snapshot *spill)
{
	if (get_failures(dict, spill->failures) != 0)
		return -1;
	if (!PyDict_GetItemString(dict, "ns_counts"))
		return 0;
	return stats_need_sketch(spill) == 0 ? get_sketch(dict, spill->overflow) : -1;
}

int stats_spill_from_dict(PyObject *dict, struct xfer_snapshot *spill)
{
	*spill = (struct xfer_snapshot){0};
	if (!PyDict_Check(dict)) {
		PyErr_SetString(PyExc_TypeError, "'overflow' is not a dict");
		return -1;
	}
	PyObject *copy = PyDict_Copy(dict); /* which nobody changes while its keys are compared */
	int result = copy ? get_spill(copy, spill) : -1;
	Py_XDECREF(copy);
	if (result != 0)
		xfer_snapshot_free(spill);
	return result;
}

/* --- the state --------------------------------------------------------------------------------------- */

/* In core mode a dict of its own, and the object stays in core mode. *spill is to be freed. */
static PyObject *core_as_data(struct stats_object *stats, struct xfer_snapshot *spill)
{
	struct xfer_snapshot copy;
	PyObject *lists[COLUMNS];
	PyObject *data = stats_new_data();
	if (!data)
		return NULL;
	if (stats_snapshot(stats, &copy) != 0) {
		Py_DECREF(data);
		return NULL;
	}
	int result = stats_hold(data, lists);
	if (result == 0) {
		result = stats_append(lists, stats->row_limit, &copy, spill);
		stats_release(lists);
	}
	xfer_snapshot_free(&copy);
	if (result != 0)
		Py_CLEAR(data);
	return data;
}

static PyObject *data_of(struct stats_object *stats, struct xfer_snapshot *spill)
{
	if (!stats->data)
		return core_as_data(stats, spill);
	if (stats_drain(stats) != 0 || stats_spill(spill, &stats->spill) != 0)
		return NULL;
	PyObject *data = stats->data;
	Py_XINCREF(data);
	return data ? data : stats_new_data();
}

/* What a subclass has put into the instance's __dict__. */
static int add_attributes(PyObject *self, PyObject *state)
{
	PyObject *attributes = PyObject_GetAttrString(self, "__dict__");
	if (!attributes) {
		if (!PyErr_ExceptionMatches(PyExc_AttributeError))
			return -1;
		PyErr_Clear();
		return 0;
	}
	int result = PyDict_Update(state, attributes);
	Py_DECREF(attributes);
	return result;
}

static int fill_state(PyObject *self, PyObject *state)
{
	struct stats_object *stats = (struct stats_object *)self;
	struct xfer_snapshot spill = {0};
	if (add_attributes(self, state) != 0)
		return -1;
	int result = stats_set_new(state, "data", data_of(stats, &spill));
	if (result == 0 && stats_spilled(&spill))
		result = stats_set_new(state, "overflow", stats_spill_to_dict(&spill));
	if (result == 0 && stats->row_limit != XFER_ROW_LIMIT)
		result = stats_set_new(state, "row_limit", PyLong_FromSize_t(stats->row_limit));
	xfer_snapshot_free(&spill);
	return result;
}

PyObject *stats_getstate(PyObject *self, PyObject *unused)
{
	(void)unused;
	PyObject *state = PyDict_New();
	if (state && fill_state(self, state) != 0)
		Py_CLEAR(state);
	return state;
}

/* Everything that is not the object's own goes to the instance's __dict__. */
static int set_attributes(PyObject *self, PyObject *state)
{
	static const char *const own[] = {"data", "overflow", "row_limit"};
	PyObject *rest = PyDict_Copy(state);
	if (!rest)
		return -1;
	int result = 0;
	for (size_t i = 0; i < sizeof(own) / sizeof(*own) && result == 0; i++)
		if (PyDict_GetItemString(rest, own[i]))
			result = PyDict_DelItemString(rest, own[i]);
	if (result == 0 && PyDict_Size(rest) > 0) {
		PyObject *attributes = PyObject_GetAttrString(self, "__dict__");
		result = attributes ? PyDict_Update(attributes, rest) : -1;
		Py_XDECREF(attributes);
	}
	Py_DECREF(rest);
	return result;
}

static int set_own(struct stats_object *stats, PyObject *state)
{
	PyObject *data = PyDict_GetItemString(state, "data");
	PyObject *overflow = PyDict_GetItemString(state, "overflow");
	PyObject *limit = PyDict_GetItemString(state, "row_limit");
	struct xfer_snapshot spill = {0};
	if (!data) {
		PyErr_SetString(PyExc_ValueError, "the state has no 'data'");
		return -1;
	}
	Py_INCREF(data);
	int result = overflow ? stats_spill_from_dict(overflow, &spill) : 0;
	if (result == 0)
		result = stats_set_row_limit(stats, limit ? limit : Py_None);
	if (result == 0)
		result = stats_replace(stats, data);
	if (result == 0)
		result = stats_spill(&stats->spill, &spill);
	xfer_snapshot_free(&spill);
	Py_DECREF(data);
	return result;
}

PyObject *stats_setstate(PyObject *self, PyObject *state)
{
	if (!PyDict_Check(state)) {
		PyErr_SetString(PyExc_TypeError, "__setstate__(): the state must be a dict");
		return NULL;
	}
	PyObject *copy = PyDict_Copy(state); /* which nobody changes while its keys are compared */
	int result = copy ? set_own((struct stats_object *)self, copy) : -1;
	if (result == 0)
		result = set_attributes(self, copy);
	Py_XDECREF(copy);
	if (result != 0)
		return NULL;
	Py_RETURN_NONE;
}

/* The same for every protocol: class.__new__(class), then __setstate__. */
PyObject *stats_reduce_ex(PyObject *self, PyObject *protocol)
{
	(void)protocol;
	PyObject *copyreg = PyImport_ImportModule("copyreg");
	PyObject *newobj = copyreg ? PyObject_GetAttrString(copyreg, "__newobj__") : NULL;
	PyObject *state = newobj ? PyObject_CallMethod(self, "__getstate__", NULL) : NULL;
	PyObject *result = state ? Py_BuildValue("O(O)O", newobj, Py_TYPE(self), state) : NULL;
	Py_XDECREF(state);
	Py_XDECREF(newobj);
	Py_XDECREF(copyreg);
	return result;
}
