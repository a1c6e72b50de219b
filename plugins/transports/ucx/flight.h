/* ucx/flight.h - one operation of UCX, from the call that starts it to the callback that ends it.
   Everything runs under the lock of the data calls. */
#ifndef UCX_FLIGHT_H
#define UCX_FLIGHT_H

#include <stdbool.h>
#include <ucp/api/ucp.h>

enum ucx_state {
    UCX_IDLE,   /* not started */
    UCX_FLYING, /* started, not ended */
    UCX_LANDED, /* ended without an error */
    UCX_FAILED, /* ended with an error, or with the wrong length */
};

struct ucx_flight {
    enum ucx_state state;
    ucs_status_t status; /* of a failed operation; UCS_OK: its length is wrong */
    void *request;       /* while it is flying */
    uint64_t posted_ns;  /* of a receive: when the message could begin to move */
    uint64_t bytes; /* of a receive: the length it must have; after its end: the length it had */
};

/* Marks `flight` as flying, and returns the parameters of an operation that ends in it. */
ucp_request_param_t ucx_sending(struct ucx_flight *flight);
/* The same for a receive; the message must have `bytes`. */
ucp_request_param_t ucx_receiving(struct ucx_flight *flight, uint64_t bytes);

static inline bool ucx_has_ended(const struct ucx_flight *flight)
{
    return flight->state >= UCX_LANDED;
}

static inline void ucx_end(struct ucx_flight *flight, ucs_status_t status)
{
    flight->status = status;
    flight->request = NULL;
    flight->state = status == UCS_OK ? UCX_LANDED : UCX_FAILED;
}

/* Records what the starting call returned; the operation may have ended within that call. */
static inline void ucx_launch(struct ucx_flight *flight, ucs_status_ptr_t result)
{
    if (!UCS_PTR_IS_PTR(result)) {
        ucx_end(flight, UCS_PTR_STATUS(result));
    } else if (flight->state == UCX_FLYING) {
        flight->request = result;
    }
}

#endif /* UCX_FLIGHT_H */
