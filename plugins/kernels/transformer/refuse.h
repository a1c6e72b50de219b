/* plugins/kernels/transformer/refuse.h - errors and log lines of the stage program. */
#ifndef HD_TRANSFORMER_REFUSE_H
#define HD_TRANSFORMER_REFUSE_H

#include <heddle/kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Leaves the function with the first status that is not OK. */
#define HD_TRY(step)                    \
    do {                                \
        const hd_status tried = (step); \
        if (tried != HD_OK) {           \
            return tried;               \
        }                               \
    } while (0)

/* What a backward can find wrong with a payload. */
enum hd_fault_code {
    HD_FAULT_NONE = 0,
    HD_FAULT_OTHER_STAGE = 1, /* not a stamp, or the stamp of another stage or half */
    HD_FAULT_STALE = 2,       /* the stamp of another microbatch or generation */
    HD_FAULT_ROUTING = 3,     /* the stamp is right, but the routing after it was overwritten */
};

/* The first fault of a kernel.  A device writes `code` last; it is never cleared. */
struct hd_fault {
    uint32_t code, stage, block, reserved; /* block: of the model */
    uint64_t microbatch, generation;       /* expected */
    uint64_t found_magic, found_generation, found_microbatch;
};

/* Reports the text to host->fail and returns `status`. */
hd_status hd_refuse(const struct hd_host *host, hd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Reports the fault and returns HD_PROTOCOL. */
hd_status hd_fault_refuse(const struct hd_host *host, const struct hd_fault *fault);
/* Logs one line, if the host has a log. */
enum hd_tell_level { HD_TELL_WARN = 1, HD_TELL_INFO = 2, HD_TELL_DEBUG = 3 };
void hd_tell(const struct hd_host *host, enum hd_tell_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif

#endif /* HD_TRANSFORMER_REFUSE_H */
