/* conform/kernel_stream.c - the stream of a kernel: order, marks and abort. */
#include "conform/kernel_checks.h"

#include "base/clock.h"
#include "base/try.h"

#include <stdlib.h>
#include <string.h>

enum { DELAY_BYTES = 16 << 20, DELAY_COUNT = 8, SMALL_BYTES = 4096, SPARE_MARKS = 64 };

struct stream {
    struct hd_conform_case *check;
    const struct hd_kernel_ops *ops;
    struct hd_kernel *kernel;
    uint64_t limit_ns;
    void *large, *first, *second; /* on the device */
    unsigned char *here;          /* a page of host memory */
};

/* Keeps the device busy for longer than the host takes to make the calls that follow. */
static hd_status kernel_stream_delay(const struct stream *stream)
{
    for (uint32_t i = 0; i < DELAY_COUNT; i++) {
        HD_TRY(stream->ops->copy(stream->kernel, stream->large, NULL, DELAY_BYTES, i));
    }
    return HD_OK;
}

/* first = 11; second = first; first = 22; here = second; without a wait in between. */
static hd_status kernel_stream_shuffle(const struct stream *stream)
{
    const struct {
        void *target;
        const void *source;
        uint32_t fill;
    } rows[] = {
        {stream->first, NULL, 0x11},
        {stream->second, stream->first, 0},
        {stream->first, NULL, 0x22},
        {stream->here, stream->second, 0},
    };

    HD_TRY(kernel_stream_delay(stream));
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        HD_TRY(stream->ops->copy(stream->kernel, rows[i].target, rows[i].source, SMALL_BYTES,
                                 rows[i].fill));
    }
    return HD_OK;
}

static void kernel_stream_judge_order(const struct stream *stream)
{
    struct hd_conform_case *check = stream->check;
    const uint64_t begin_ns = hd_now_ns();
    uint64_t before = 0, behind = 0, before_ns = 0, behind_ns = 0;

    hd_status status = stream->ops->mark(stream->kernel, &before);
    status = status == HD_OK ? kernel_stream_shuffle(stream) : status;
    status = status == HD_OK ? stream->ops->mark(stream->kernel, &behind) : status;
    HD_HOLD(check, status == HD_OK, "a call returns %s", hd_status_name(status));
    HD_HOLD(check, before == 1 && behind == 2, "the first marks are %llu and %llu, not 1 and 2",
            (unsigned long long)before, (unsigned long long)behind);
    status = stream->ops->reached(stream->kernel, behind, stream->limit_ns, &behind_ns);
    HD_HOLD(check, status == HD_OK, "waiting for the last mark returns %s", hd_status_name(status));
    const uint64_t end_ns = hd_now_ns();
    for (uint32_t i = 0; i < SMALL_BYTES; i++) {
        HD_HOLD(check, stream->here[i] == 0x11, "byte %u of the copy is %02x, not 11", i,
                stream->here[i]);
    }
    status = stream->ops->reached(stream->kernel, before, 0, &before_ns);
    HD_HOLD(check, status == HD_OK, "reached of an earlier mark returns %s",
            hd_status_name(status));
    HD_HOLD(
        check, begin_ns <= before_ns && before_ns <= behind_ns && behind_ns <= end_ns,
        "the marks were passed %lld and %lld ns after the first call, and now is %lld ns after it",
        (long long)(before_ns - begin_ns), (long long)(behind_ns - begin_ns),
        (long long)(end_ns - begin_ns));
}

/* At least HD_MARK_MAX marks may be under way; after that the kernel may return BUSY. */
static void kernel_stream_judge_marks(const struct stream *stream)
{
    struct hd_conform_case *check = stream->check;
    hd_status status = kernel_stream_delay(stream);
    uint64_t mark = 0, last = 0, passed_ns = 0;
    uint32_t count = 0;

    for (; status == HD_OK && count < HD_MARK_MAX + SPARE_MARKS; count++) {
        status = stream->ops->mark(stream->kernel, &mark);
        last = status == HD_OK ? mark : last;
    }
    HD_HOLD(check, status == HD_OK || status == HD_BUSY, "mark %u returns %s", count,
            hd_status_name(status));
    HD_HOLD(check, count >= HD_MARK_MAX, "mark returns HD_BUSY after %u marks, not %u", count,
            HD_MARK_MAX);
    status = stream->ops->reached(stream->kernel, last, stream->limit_ns, &passed_ns);
    HD_HOLD(check, status == HD_OK, "waiting for the last of %u marks returns %s", count,
            hd_status_name(status));
}

/* After an abort no call waits for the stream.  Memory that was allocated is not freed. */
static void kernel_stream_judge_abort(const struct stream *stream)
{
    uint64_t mark = 0, passed_ns = 0;
    hd_status status = kernel_stream_delay(stream);

    status = status == HD_OK ? stream->ops->mark(stream->kernel, &mark) : status;
    HD_HOLD(stream->check, status == HD_OK, "a call returns %s", hd_status_name(status));
    stream->ops->abort(stream->kernel);
    status = stream->ops->reached(stream->kernel, mark, stream->limit_ns, &passed_ns);
    HD_HOLD(stream->check, status < 0, "after an abort a wait returns %s", hd_status_name(status));
}

static hd_status kernel_stream_take(struct stream *stream)
{
    void *here = NULL;

    HD_TRY(stream->ops->allocate(stream->kernel, DELAY_BYTES, "conform", &stream->large));
    HD_TRY(stream->ops->allocate(stream->kernel, SMALL_BYTES, "conform", &stream->first));
    HD_TRY(stream->ops->allocate(stream->kernel, SMALL_BYTES, "conform", &stream->second));
    if (posix_memalign(&here, SMALL_BYTES, SMALL_BYTES) != 0) {
        return HD_NO_MEMORY;
    }
    stream->here = here;
    return HD_OK;
}

void hd_conform_kernel_stream(struct hd_conform_case *check)
{
    struct hd_kernel_rig rig;

    if (hd_kernel_rig_open_device(&rig, check) != HD_OK) {
        return;
    }
    struct stream stream = {.check = check,
                            .ops = rig.harness.ops,
                            .kernel = rig.harness.kernel,
                            .limit_ns = check->subject->limit_ms * HD_MS_NS};
    if (rig.harness.device.stream == NULL) {
        hd_conform_skip(check, "has no stream");
        rig.harness.ops->close(rig.harness.kernel);
        return;
    }
    HD_HOLD(check,
            stream.ops->abort != NULL && stream.ops->allocate != NULL && stream.ops->copy != NULL &&
                stream.ops->mark != NULL && stream.ops->reached != NULL,
            "abort, allocate, copy, mark or reached is NULL");
    const hd_status status = kernel_stream_take(&stream);
    HD_HOLD(check, status == HD_OK, "cannot allocate memory for the check: %s",
            hd_status_name(status));
    memset(stream.here, 0xff, SMALL_BYTES);
    void (*const parts[])(const struct stream *) = {
        kernel_stream_judge_order, kernel_stream_judge_marks, kernel_stream_judge_abort};
    for (unsigned i = 0; i < 3 && !hd_conform_is_decided(check); i++) {
        parts[i](&stream);
    }
}
