/* plugins/kernels/transformer/refuse.c - see refuse.h. */
#include "refuse.h"

#include <stdarg.h>
#include <stdio.h>

hd_status hd_refuse(const struct hd_host *host, hd_status status, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const struct hd_error error = {.size = sizeof error,
                                   .status = status,
                                   .rank = UINT32_MAX,
                                   .channel = UINT32_MAX,
                                   .text = text};
    return host->fail != NULL ? host->fail(host->context, &error) : status;
}

void hd_tell(const struct hd_host *host, enum hd_tell_level level, const char *format, ...)
{
    char text[512];
    va_list arguments;
    if (host->log == NULL) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    host->log(host->context, level, text);
}

hd_status hd_fault_refuse(const struct hd_host *host, const struct hd_fault *fault)
{
    const unsigned long long microbatch = fault->microbatch, generation = fault->generation;
    switch (fault->code) {
    case HD_FAULT_OTHER_STAGE:
        return hd_refuse(host, HD_PROTOCOL,
                         "stage %u, microbatch %llu: expected the payload of generation %llu, "
                         "found no payload of this stage (magic %016llx, generation %llu)",
                         fault->stage, microbatch, generation,
                         (unsigned long long)fault->found_magic,
                         (unsigned long long)fault->found_generation);
    case HD_FAULT_STALE:
        return hd_refuse(host, HD_PROTOCOL,
                         "stage %u, microbatch %llu: expected the payload of generation %llu, "
                         "found generation %llu of microbatch %llu: the slot was leased again too "
                         "early",
                         fault->stage, microbatch, generation,
                         (unsigned long long)fault->found_generation,
                         (unsigned long long)fault->found_microbatch);
    default:
        return hd_refuse(host, HD_PROTOCOL,
                         "stage %u, microbatch %llu, generation %llu: the routing of block %u in "
                         "the payload was overwritten, although its stamp is intact",
                         fault->stage, microbatch, generation, fault->block);
    }
}
