#include "launch/clock.h"

#include "base/number.h"

#include <assert.h>

struct hd_clock_reading hd_clock_read(struct hd_clock_sample sample)
{
    assert(sample.answered_ns >= sample.asked_ns);
    const uint64_t way_ns = sample.answered_ns - sample.asked_ns;
    const uint64_t middle_ns = sample.asked_ns + way_ns / 2;

    return (struct hd_clock_reading){
        .at_ns = middle_ns,
        .offset_ns = (int64_t)(sample.there_ns - middle_ns),
        .error_ns = way_ns - way_ns / 2,
    };
}

void hd_clock_take_first(struct hd_clock *clock, struct hd_clock_sample sample)
{
    const struct hd_clock_reading reading = hd_clock_read(sample);

    if (clock->first.at_ns == 0 || reading.error_ns < clock->first.error_ns) {
        clock->first = reading;
    }
}

void hd_clock_take(struct hd_clock *clock, struct hd_clock_sample sample)
{
    clock->window[clock->count++ % HD_CLOCK_WINDOW] = hd_clock_read(sample);
}

struct hd_clock_reading hd_clock_last(const struct hd_clock *clock)
{
    const uint32_t kept = hd_min_u32(clock->count, HD_CLOCK_WINDOW);
    struct hd_clock_reading best = clock->first;

    for (uint32_t i = 0; i < kept; i++) {
        if (i == 0 || clock->window[i].error_ns < best.error_ns) {
            best = clock->window[i];
        }
    }
    return best;
}

int64_t hd_clock_offset_ns(const struct hd_clock *clock, uint64_t at_ns)
{
    const struct hd_clock_reading first = clock->first, last = hd_clock_last(clock);

    if (at_ns <= first.at_ns || last.at_ns <= first.at_ns) {
        return first.offset_ns;
    }
    if (at_ns >= last.at_ns) {
        return last.offset_ns;
    }
    const double share = (double)(at_ns - first.at_ns) / (double)(last.at_ns - first.at_ns);
    return first.offset_ns + (int64_t)(share * (double)(last.offset_ns - first.offset_ns));
}
