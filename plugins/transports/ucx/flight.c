/* ucx/flight.c - the callbacks that end an operation. */
#include "flight.h"

static void ucx_on_sent(void *request, ucs_status_t status, void *user_data)
{
    ucx_end(user_data, status);
    ucp_request_free(request);
}

static void ucx_on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                            void *user_data)
{
    struct ucx_flight *flight = user_data;
    const bool is_whole = info->length == flight->bytes;

    flight->bytes = info->length;
    ucx_end(flight, status);
    flight->state = is_whole ? flight->state : UCX_FAILED;
    ucp_request_free(request);
}

ucp_request_param_t ucx_sending(struct ucx_flight *flight)
{
    flight->state = UCX_FLYING;
    return (ucp_request_param_t){.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = ucx_on_sent,
                                 .user_data = flight};
}

/* Always ended by the callback: UCX 1.13 omits the length of a receive that ends at once. */
ucp_request_param_t ucx_receiving(struct ucx_flight *flight, uint64_t bytes)
{
    flight->state = UCX_FLYING;
    flight->bytes = bytes;
    return (ucp_request_param_t){.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
                                 .cb.recv = ucx_on_received,
                                 .user_data = flight};
}
