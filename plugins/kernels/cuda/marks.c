/*
 * plugins/kernels/cuda/marks.c - points in the stream that the host waits for, and their times.
 *
 * The time of a mark is the time of another mark (the anchor) plus the elapsed time that CUDA
 * reports between the two.  CUDA returns a float of milliseconds, so the anchor is renewed: within
 * one second the error is at most 60 ns.
 */
#include "driver.h"

#include <assert.h>
#include <time.h>

#define ANCHOR_AGE_NS 1000000000ull

static cudaEvent_t *cuda_event_of(struct hd_cuda *driver, uint64_t mark)
{
    return mark == 0 ? &driver->marks.origin : &driver->marks.events[mark % HD_MARK_MAX];
}

static uint64_t cuda_now_of(const struct hd_cuda *driver)
{
    return driver->host->now_ns(driver->host->context);
}

hd_status hd_cuda_open_marks(struct hd_cuda *driver)
{
    struct hd_cuda_marks *marks = &driver->marks;
    cudaError_t error = driver->cuda.cudaEventCreateWithFlags(&marks->origin, cudaEventDefault);
    for (uint32_t i = 0; error == cudaSuccess && i < HD_MARK_MAX; i++) {
        error = driver->cuda.cudaEventCreateWithFlags(&marks->events[i], cudaEventDefault);
    }
    if (error != cudaSuccess) {
        return hd_cuda_fail_call(driver, "cudaEventCreateWithFlags", error);
    }
    error = driver->cuda.cudaEventRecord(marks->origin, driver->stream);
    if (error == cudaSuccess) {
        error = driver->cuda.cudaEventSynchronize(marks->origin);
    }
    marks->anchor_ns = cuda_now_of(driver);
    return error == cudaSuccess ? HD_OK : hd_cuda_fail_call(driver, "cudaEventRecord", error);
}

void hd_cuda_close_marks(struct hd_cuda *driver)
{
    struct hd_cuda_marks *marks = &driver->marks;
    for (uint32_t i = 0; i < HD_MARK_MAX; i++) {
        if (marks->events[i] != NULL) {
            driver->cuda.cudaEventDestroy(marks->events[i]);
        }
    }
    if (marks->origin != NULL) {
        driver->cuda.cudaEventDestroy(marks->origin);
    }
}

/* Half of the ring is kept for marks that have passed and may be asked for again, and for the
   anchor. */
hd_status hd_cuda_mark(struct hd_ops_device *device, uint64_t *mark)
{
    struct hd_cuda *driver = device->driver;
    struct hd_cuda_marks *marks = &driver->marks;
    HD_TRY(hd_cuda_enter(driver));
    if (marks->last - marks->passed >= HD_MARK_MAX - 1) {
        return HD_BUSY;
    }
    const uint64_t next = marks->last + 1;
    if (next - marks->anchor >= HD_MARK_MAX && marks->passed > marks->anchor) {
        uint64_t unused;
        HD_TRY(hd_cuda_reached(device, marks->passed, 0, &unused));
    }
    const cudaError_t error =
        driver->cuda.cudaEventRecord(*cuda_event_of(driver, next), driver->stream);
    if (error != cudaSuccess) {
        return hd_cuda_fail_call(driver, "cudaEventRecord", error);
    }
    *mark = marks->last = next;
    return HD_OK;
}

/* A fault that the device found is reported first: it is the cause of any later error. */
static hd_status cuda_look_at_fault(struct hd_cuda *driver)
{
    if (*(volatile uint32_t *)&driver->fault->code == HD_FAULT_NONE) {
        return HD_OK;
    }
    if (driver->failed == HD_OK) {
        driver->failed = HD_PROTOCOL;
        atomic_thread_fence(memory_order_acquire);
        return hd_fault_refuse(driver->host, driver->fault);
    }
    return driver->failed;
}

/* Polls between short sleeps, so that an abort is seen within a millisecond. */
static hd_status cuda_wait_for(struct hd_cuda *driver, cudaEvent_t event, uint64_t timeout_ns)
{
    const uint64_t began = cuda_now_of(driver);
    struct timespec pause = {0, 5000};
    for (;;) {
        if (atomic_load(&driver->is_aborted)) {
            return HD_ABORTED;
        }
        const cudaError_t error = driver->cuda.cudaEventQuery(event);
        if (error == cudaSuccess) {
            return HD_OK;
        }
        if (error != cudaErrorNotReady) {
            HD_TRY(cuda_look_at_fault(driver));
            return hd_cuda_fail_call(driver, "cudaEventQuery", error);
        }
        if (cuda_now_of(driver) - began >= timeout_ns) {
            return HD_IN_PROGRESS;
        }
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec < 160000 ? 2 * pause.tv_nsec : 200000;
    }
}

/* The host's clock at the time the device passed `mark`. */
static hd_status cuda_time_of(struct hd_cuda *driver, uint64_t mark, uint64_t *passed_ns)
{
    struct hd_cuda_marks *marks = &driver->marks;
    float between_ms = 0;
    const cudaError_t error = driver->cuda.cudaEventElapsedTime(
        &between_ms, *cuda_event_of(driver, marks->anchor), *cuda_event_of(driver, mark));
    if (error != cudaSuccess) {
        return hd_cuda_fail_call(driver, "cudaEventElapsedTime", error);
    }
    const double now = (double)cuda_now_of(driver);
    double passed = (double)marks->anchor_ns + (double)between_ms * 1e6;
    if (passed > now) { /* the anchor's time was read late: all later times are as late */
        marks->anchor_ns -= (uint64_t)(passed - now);
        passed = now;
    }
    *passed_ns = (uint64_t)passed;
    if (mark > marks->anchor && (*passed_ns - marks->anchor_ns > ANCHOR_AGE_NS ||
                                 marks->last - marks->anchor > HD_MARK_MAX / 2)) {
        marks->anchor = mark;
        marks->anchor_ns = *passed_ns;
    }
    return HD_OK;
}

hd_status hd_cuda_reached(struct hd_ops_device *device, uint64_t mark, uint64_t timeout_ns,
                          uint64_t *passed_ns)
{
    struct hd_cuda *driver = device->driver;
    struct hd_cuda_marks *marks = &driver->marks;
    assert(mark >= 1 && mark <= marks->last && mark + HD_MARK_MAX > marks->last);
    HD_TRY(hd_cuda_enter(driver));
    HD_TRY(cuda_wait_for(driver, *cuda_event_of(driver, mark), timeout_ns));
    HD_TRY(cuda_look_at_fault(driver));
    marks->passed = mark > marks->passed ? mark : marks->passed;
    hd_cuda_finish_staged(driver, marks->passed);
    return cuda_time_of(driver, mark, passed_ns);
}
