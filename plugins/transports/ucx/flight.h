/* ucx/flight.h - one operation of UCX, from the call that starts it to the callback that ends it.
   All under the lock of the data calls, whichever thread has it. */
#ifndef UCX_FLIGHT_H
#define UCX_FLIGHT_H

#include <ucp/api/ucp.h>

enum ucx_state { UCX_IDLE, UCX_FLYING, UCX_LANDED, UCX_FAILED };

struct ucx_flight {
    enum ucx_state state;
    ucs_status_t status; /* once failed; UCS_OK: its length is wrong */
    void *request;       /* while flying */
    uint64_t posted_ns;  /* of a receive: from here on the message could move */
    uint64_t bytes;      /* of a receive: that it must have; of one that has ended: that it had */
};

/* The parameters of an operation whose end lands in `flight`, which flies from here on. */
ucp_request_param_t ucx_sending(struct ucx_flight *flight);
/* Likewise; the message must have `bytes`. */
ucp_request_param_t ucx_receiving(struct ucx_flight *flight, uint64_t bytes);

static inline int ucx_has_ended(const struct ucx_flight *flight)
{
    return flight->state >= UCX_LANDED;
}

static inline void ucx_end(struct ucx_flight *flight, ucs_status_t status)
{
    flight->status = status;
    flight->request = NULL;
    flight->state = status == UCS_OK ? UCX_LANDED : UCX_FAILED;
}

/* Takes what the call returned that started it; its end may have come from within the call. */
static inline void ucx_launch(struct ucx_flight *flight, ucs_status_ptr_t result)
{
    if (!UCS_PTR_IS_PTR(result)) {
        ucx_end(flight, UCS_PTR_STATUS(result));
    } else if (flight->state == UCX_FLYING) {
        flight->request = result;
    }
}

#endif /* UCX_FLIGHT_H */
