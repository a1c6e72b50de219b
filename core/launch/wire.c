#include "launch/wire.h"
#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHUNK_BYTES = 64 * 1024 };

void hd_wire_init(struct hd_wire *wire, int descriptor)
{
    const int yes = 1;

    *wire = (struct hd_wire){.descriptor = descriptor, .heard_ns = hd_now_ns()};
    fcntl(descriptor, F_SETFL, O_NONBLOCK);
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static void wire_empty(struct hd_wire_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct hd_wire_buffer){0};
}

void hd_wire_close(struct hd_wire *wire)
{
    if (wire->descriptor >= 0) {
        close(wire->descriptor);
    }
    wire->descriptor = -1;
    wire_empty(&wire->in);
    wire_empty(&wire->out);
}

bool hd_wire_is_open(const struct hd_wire *wire)
{
    return wire->descriptor >= 0;
}

/* Makes room for `more` bytes at the end; drops first what was read already. */
static hd_status wire_make_room(struct hd_wire_buffer *buffer, uint64_t more)
{
    if (buffer->begin > 0) {
        memmove(buffer->bytes, buffer->bytes + buffer->begin, buffer->end - buffer->begin);
        buffer->end -= buffer->begin;
        buffer->begin = 0;
    }
    if (buffer->end + more <= buffer->capacity) {
        return HD_OK;
    }
    const uint64_t capacity = 2 * (buffer->end + more);
    unsigned char *const bytes = realloc(buffer->bytes, capacity);
    if (bytes == NULL) {
        return HD_NO_MEMORY;
    }
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return HD_OK;
}

static hd_status wire_append(struct hd_wire_buffer *buffer, const void *bytes, uint64_t count)
{
    const hd_status status = wire_make_room(buffer, count);

    if (status == HD_OK && count > 0) {
        memcpy(buffer->bytes + buffer->end, bytes, count);
        buffer->end += count;
    }
    return status;
}

/* A frame that cannot be buffered breaks the stream. */
static hd_status wire_lose(struct hd_wire *wire)
{
    hd_wire_close(wire);
    return HD_PEER_LOST;
}

hd_status hd_wire_send(struct hd_wire *wire, const struct hd_frame *frame, const void *bytes)
{
    assert(frame->bytes <= HD_FRAME_BYTES_MAX);
    if (!hd_wire_is_open(wire)) {
        return HD_PEER_LOST;
    }
    if (wire_append(&wire->out, frame, sizeof *frame) != HD_OK ||
        wire_append(&wire->out, bytes, frame->bytes) != HD_OK) {
        return wire_lose(wire);
    }
    return hd_wire_flush(wire);
}

hd_status hd_wire_flush(struct hd_wire *wire)
{
    struct hd_wire_buffer *const out = &wire->out;

    if (!hd_wire_is_open(wire)) {
        return HD_PEER_LOST;
    }
    while (out->begin < out->end) {
        const ssize_t sent =
            send(wire->descriptor, out->bytes + out->begin, out->end - out->begin, MSG_NOSIGNAL);
        if (sent > 0) {
            out->begin += (uint64_t)sent;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return HD_OK;
        } else if (errno != EINTR) {
            /* What the other end has sent can still be read, so the wire stays open. */
            out->begin = out->end;
            return HD_PEER_LOST;
        }
    }
    return HD_OK;
}

bool hd_wire_has_queue(const struct hd_wire *wire)
{
    return wire->out.begin < wire->out.end;
}

hd_status hd_wire_receive(struct hd_wire *wire)
{
    struct hd_wire_buffer *const in = &wire->in;

    while (hd_wire_is_open(wire)) {
        if (wire_make_room(in, CHUNK_BYTES) != HD_OK) {
            return wire_lose(wire);
        }
        const ssize_t count = recv(wire->descriptor, in->bytes + in->end, CHUNK_BYTES, 0);
        if (count > 0) {
            in->end += (uint64_t)count;
            wire->heard_ns = hd_now_ns();
        } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return HD_OK;
        } else if (count == 0 || errno != EINTR) {
            return HD_PEER_LOST;
        }
    }
    return HD_PEER_LOST;
}

bool hd_wire_next(struct hd_wire *wire, struct hd_frame *frame, const unsigned char **bytes)
{
    struct hd_wire_buffer *const in = &wire->in;

    if (in->end - in->begin < sizeof *frame) {
        return false;
    }
    memcpy(frame, in->bytes + in->begin, sizeof *frame);
    if (frame->bytes > HD_FRAME_BYTES_MAX) {
        hd_wire_close(wire);
        return false;
    }
    if (in->end - in->begin - sizeof *frame < frame->bytes) {
        return false;
    }
    *bytes = in->bytes + in->begin + sizeof *frame;
    in->begin += sizeof *frame + frame->bytes;
    return true;
}
