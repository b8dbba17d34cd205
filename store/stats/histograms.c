/* SPDX-License-Identifier: Apache-2.0 */
#include "store/stats/histograms.h"

#include <stddef.h>

const struct xfer_bound xfer_time_bounds[XFER_TIME_BOUNDS] = {
        {0.005, "0.005"}, {0.01, "0.01"}, {0.025, "0.025"}, {0.05, "0.05"}, {0.075, "0.075"}, {0.1, "0.1"},
        {0.2, "0.2"},     {0.3, "0.3"},   {0.5, "0.5"},     {0.75, "0.75"}, {1, "1.0"},       {5, "5.0"},
};

/* 2 KiB to 8 GiB, each four times the one before. */
const struct xfer_bound xfer_bytes_bounds[XFER_BYTES_BOUNDS] = {
        {0x1p11, "2048.0"},         {0x1p13, "8192.0"},          {0x1p15, "32768.0"},
        {0x1p17, "131072.0"},       {0x1p19, "524288.0"},        {0x1p21, "2.097152e+06"},
        {0x1p23, "8.388608e+06"},   {0x1p25, "3.3554432e+07"},   {0x1p27, "1.34217728e+08"},
        {0x1p29, "5.36870912e+08"}, {0x1p31, "2.147483648e+09"}, {0x1p33, "8.589934592e+09"},
};

const struct xfer_bound xfer_descriptor_bounds[XFER_DESCRIPTOR_BOUNDS] = {
        {10, "10.0"},     {20, "20.0"},       {30, "30.0"},       {50, "50.0"},       {75, "75.0"},
        {100, "100.0"},   {200, "200.0"},     {400, "400.0"},     {1000, "1000.0"},   {2000, "2000.0"},
        {4000, "4000.0"}, {10000, "10000.0"}, {20000, "20000.0"}, {50000, "50000.0"},
};

static uint32_t bucket_of(const struct xfer_bound *bounds, uint32_t n, double value)
{
	uint32_t i = 0;
	while (i < n && value > bounds[i].value)
		i++;
	return i;
}

void xfer_histograms_push(struct xfer_histograms *histograms, const struct xfer_row *row)
{
	histograms->time[bucket_of(xfer_time_bounds, XFER_TIME_BOUNDS, row->duration_s)]++;
	histograms->bytes[bucket_of(xfer_bytes_bounds, XFER_BYTES_BOUNDS, (double)row->bytes)]++;
	histograms->descriptors[bucket_of(xfer_descriptor_bounds, XFER_DESCRIPTOR_BOUNDS, row->descriptors)]++;
}

static void add_counts(uint64_t *into, const uint64_t *from, size_t n)
{
	for (size_t i = 0; i < n; i++)
		into[i] += from[i];
}

void xfer_histograms_add(struct xfer_histograms *into, const struct xfer_histograms *from)
{
	add_counts(into->time, from->time, XFER_TIME_BOUNDS + 1);
	add_counts(into->bytes, from->bytes, XFER_BYTES_BOUNDS + 1);
	add_counts(into->descriptors, from->descriptors, XFER_DESCRIPTOR_BOUNDS + 1);
}
