/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions about the world from other processes, such as weft ps. Each rank listens at an abstract
 * address for processes of its user and of root.
 *
 *   a process ─ ASK turn ─> rank 3 ─ a flood ─> all ranks
 *             <── REPLY ─── rank 3 <── REPLY ── each rank that answers, over the links by which
 *                                               the question came
 *
 * Nobody waits for an answer: a rank or host that is stopped, or gone, sends none, and the process
 * that asks knows for how long it wants to wait. A rank passes on ten questions a second; more of
 * them wait in their sockets.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "runtime/base/error.h"
#include "runtime/base/sync.h"
#include "transport/bootstrap/overlay.h"
#include "transport/socket/fork.h"

#define BACKLOG 8
#define QUESTION_BYTES 64u               /* more than one has */
#define SLICE_NS 5000000ull              /* the helper looks whether it must stop */
#define REST_NS 20000000ull              /* of the helper, after an answer */
#define ANSWER_BYTES ((size_t)256 << 20) /* fewer than this many in one frame */

typedef struct answer {
    uint32_t origin, sequence; /* of the question */
} answer_t;

/* ---- ranks ---- */

weft_status_t wefti_overlay_listen(wefti_overlay_t *overlay, char out_name[WEFTI_ASK_NAME_BYTES])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof address.sun_family; /* the kernel chooses a name */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, length) != 0 ||
        listen(fd, BACKLOG) != 0) {
        weft_status_t status = wefti_error_errno(WEFT_ERR_SYSTEM, errno, "cannot listen");
        if (fd >= 0) {
            close(fd);
        }
        return status;
    }
    length = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &length);
    size_t bytes = length - offsetof(struct sockaddr_un, sun_path) - 1; /* after the leading zero */
    if (bytes >= WEFTI_ASK_NAME_BYTES) {
        close(fd);
        return wefti_error(WEFT_ERR_INTERNAL, "the kernel chose a name of %zu bytes", bytes);
    }
    memcpy(out_name, address.sun_path + 1, bytes);
    out_name[bytes] = '\0';
    wefti_socket_guard(fd);
    overlay->ask_fd = fd;
    overlay->ask_pause_ns = WEFTI_ASK_PAUSE_NS;
    return wefti_watch(overlay->epoll_fd, EPOLL_CTL_ADD, fd, EPOLLIN, WEFTI_ASK_TAG | WEFTI_ASKERS);
}

static void hang_up(wefti_overlay_t *overlay, wefti_asker_t *asker)
{
    if (asker->wire.fd >= 0) {
        /* closing is not enough: a forked child of this process may have a copy */
        (void)epoll_ctl(overlay->epoll_fd, EPOLL_CTL_DEL, asker->wire.fd, NULL);
        wefti_wire_deinit(&asker->wire);
    }
    *asker = (wefti_asker_t){.wire.fd = -1};
}

void wefti_overlay_stop_serving(wefti_overlay_t *overlay)
{
    for (uint32_t i = 0; i < WEFTI_ASKERS; i++) {
        wefti_wire_deinit(&overlay->askers[i].wire);
    }
    if (overlay->ask_fd >= 0) {
        wefti_socket_close(overlay->ask_fd);
        overlay->ask_fd = -1;
    }
}

static uint32_t events_of(const wefti_asker_t *asker)
{
    return asker->writing ? EPOLLOUT : EPOLLIN;
}

/* After a send or a flush: either it is read from, or written to. */
static void watch_asker(wefti_overlay_t *overlay, wefti_asker_t *asker, weft_status_t status)
{
    bool writing = status == WEFT_AGAIN;
    if (status < 0) {
        hang_up(overlay, asker);
    } else if (writing != asker->writing) {
        asker->writing = writing;
        if (!asker->paused) { /* else it is not watched for a moment */
            (void)wefti_watch(overlay->epoll_fd, EPOLL_CTL_MOD, asker->wire.fd, events_of(asker),
                              WEFTI_ASK_TAG | (uint32_t)(asker - overlay->askers));
        }
    }
}

/* Of other users: only root's. The place of the process that came first is given to a new one. */
static void accept_asker(wefti_overlay_t *overlay)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    int fd = accept4(overlay->ask_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 ||
        (credentials.uid != geteuid() && credentials.uid != 0)) {
        close(fd);
        return;
    }
    uint32_t place = overlay->next_asker++ % WEFTI_ASKERS;
    wefti_asker_t *asker = &overlay->askers[place];
    hang_up(overlay, asker);
    wefti_socket_guard(fd);
    wefti_wire_init(&asker->wire, fd, QUESTION_BYTES, overlay->params.allocator);
    if (wefti_watch(overlay->epoll_fd, EPOLL_CTL_ADD, fd, EPOLLIN, WEFTI_ASK_TAG | place) < 0) {
        hang_up(overlay, asker);
    }
}

/* To the process that asked, or nearer to it. Under the lock. */
static void pass_on(wefti_overlay_t *overlay, const answer_t *head, const void *data, size_t bytes)
{
    for (uint32_t i = 0; i < WEFTI_ASKERS && head->origin == overlay->rank; i++) {
        wefti_asker_t *asker = &overlay->askers[i];
        if (asker->first != 0 && head->sequence - asker->first <= asker->last - asker->first) {
            watch_asker(overlay, asker,
                        wefti_wire_send(&asker->wire, WEFTI_REPLY, NULL, 0, data, bytes));
        }
    }
    for (uint32_t i = 0; i < WEFTI_ROUTES && head->origin != overlay->rank; i++) {
        const wefti_route_t *route = &overlay->routes[i];
        if (route->link != NULL && route->origin == head->origin &&
            route->sequence == head->sequence) {
            wefti_overlay_send(overlay, route->link, WEFTI_REPLY, head, sizeof *head, data, bytes);
        }
    }
}

weft_status_t wefti_overlay_receive_answer(wefti_overlay_t *overlay, const wefti_frame_t *frame)
{
    answer_t head;
    if (frame->bytes < sizeof head || frame->bytes - sizeof head > ANSWER_BYTES) {
        return WEFT_ERR_FORMAT;
    }
    memcpy(&head, frame->body, sizeof head);
    pass_on(overlay, &head, frame->body + sizeof head, frame->bytes - sizeof head);
    return WEFT_OK;
}

/* Under the lock. */
static void put_question(wefti_overlay_t *overlay, const wefti_question_t *question)
{
    if (overlay->question_count < WEFTI_QUESTIONS) {
        overlay->questions[overlay->question_count++] = *question;
    }
}

static bool take_question(wefti_overlay_t *overlay, wefti_question_t *out)
{
    pthread_mutex_lock(&overlay->lock);
    bool some = overlay->question_count > 0;
    if (some) {
        *out = overlay->questions[0];
        memmove(overlay->questions, overlay->questions + 1,
                --overlay->question_count * sizeof *overlay->questions);
    }
    pthread_mutex_unlock(&overlay->lock);
    return some;
}

static void sleep_until(wefti_overlay_t *overlay, uint64_t until_ns)
{
    uint64_t now;
    while ((now = wefti_now_ns()) < until_ns && !wefti_helper_stops(&overlay->answering)) {
        wefti_sleep_ns(until_ns - now < SLICE_NS ? until_ns - now : SLICE_NS);
    }
}

static void answer_questions(wefti_overlay_t *overlay)
{
    const wefti_overlay_params_t *params = &overlay->params;
    wefti_question_t question;
    while (!wefti_helper_stops(&overlay->answering) && take_question(overlay, &question)) {
        const answer_t head = {question.origin, question.sequence};
        size_t bytes = 0;
        bool relays = question.origin == overlay->rank;
        void *data = params->answer != NULL
                         ? params->answer(params->user, relays, question.turn, &bytes)
                         : NULL;
        if (data != NULL && bytes <= ANSWER_BYTES) {
            pthread_mutex_lock(&overlay->lock);
            pass_on(overlay, &head, data, bytes);
            pthread_mutex_unlock(&overlay->lock);
            sleep_until(overlay, overlay->ask_pause_ns > 0 ? wefti_now_ns() + REST_NS : 0);
        }
        wefti_free(params->allocator, data);
    }
}

void wefti_overlay_asked(wefti_overlay_t *overlay, uint32_t origin, uint32_t sequence,
                         uint32_t turn)
{
    pthread_mutex_lock(&overlay->lock);
    put_question(overlay, &(wefti_question_t){origin, sequence, turn});
    pthread_mutex_unlock(&overlay->lock);
    wefti_helper_wake(&overlay->answering);
}

/* Not watched, so that nothing wakes progress. Under the lock. */
static void pause_asker(wefti_overlay_t *overlay, wefti_asker_t *asker)
{
    if (!asker->paused) {
        (void)epoll_ctl(overlay->epoll_fd, EPOLL_CTL_DEL, asker->wire.fd, NULL);
        asker->paused = true;
    }
}

/* False: nothing more for now. Under the lock. */
static bool receive_question(wefti_overlay_t *overlay, wefti_asker_t *asker)
{
    wefti_frame_t frame;
    uint32_t turn;
    if (asker->writing) {
        watch_asker(overlay, asker, wefti_wire_flush(&asker->wire));
    }
    if (asker->wire.fd < 0 || asker->writing) {
        return false; /* it reads the answers before it asks more */
    }
    if (wefti_now_ns() - overlay->asked_ns < overlay->ask_pause_ns) {
        pause_asker(overlay, asker);
        return false;
    }
    weft_status_t status = wefti_wire_receive(&asker->wire, &frame);
    if (status == WEFT_AGAIN) {
        return false;
    }
    if (status < 0 || frame.kind != WEFTI_ASK || frame.bytes != sizeof turn) {
        hang_up(overlay, asker);
        return false;
    }
    memcpy(&turn, frame.body, sizeof turn);
    overlay->asked_ns = wefti_now_ns();
    asker->last = wefti_overlay_flood_question(overlay, turn);
    asker->first = asker->first != 0 ? asker->first : asker->last;
    put_question(overlay, &(wefti_question_t){overlay->rank, asker->last, turn});
    return true;
}

void wefti_overlay_serve(wefti_overlay_t *overlay, uint32_t place)
{
    bool helps = false;
    pthread_mutex_lock(&overlay->lock);
    if (place >= WEFTI_ASKERS) {
        accept_asker(overlay);
    } else {
        while (receive_question(overlay, &overlay->askers[place])) {
            helps = true;
        }
        helps = helps || overlay->askers[place].paused;
    }
    pthread_mutex_unlock(&overlay->lock);
    if (helps) {
        wefti_helper_wake(&overlay->answering);
    }
}

/* When the next question may be passed on; 0: none waits. */
static uint64_t next_question_ns(wefti_overlay_t *overlay)
{
    bool some = false;
    pthread_mutex_lock(&overlay->lock);
    for (uint32_t i = 0; i < WEFTI_ASKERS; i++) {
        some = some || overlay->askers[i].paused;
    }
    uint64_t next_ns = some ? overlay->asked_ns + overlay->ask_pause_ns : 0;
    pthread_mutex_unlock(&overlay->lock);
    return next_ns;
}

/* What they sent may have been received already, so it is read here. */
static void resume_askers(wefti_overlay_t *overlay)
{
    pthread_mutex_lock(&overlay->lock);
    for (uint32_t i = 0; i < WEFTI_ASKERS; i++) {
        wefti_asker_t *asker = &overlay->askers[(overlay->resumed + i) % WEFTI_ASKERS];
        if (!asker->paused) {
            continue;
        }
        asker->paused = false;
        if (wefti_watch(overlay->epoll_fd, EPOLL_CTL_ADD, asker->wire.fd, events_of(asker),
                        WEFTI_ASK_TAG | (uint32_t)(asker - overlay->askers)) < 0) {
            hang_up(overlay, asker);
        }
        while (receive_question(overlay, asker)) {
        }
    }
    overlay->resumed++; /* another one is the first next time */
    pthread_mutex_unlock(&overlay->lock);
}

void wefti_overlay_answer(void *user)
{
    wefti_overlay_t *overlay = user;
    uint64_t next_ns;
    answer_questions(overlay);
    while (!wefti_helper_stops(&overlay->answering) && (next_ns = next_question_ns(overlay)) != 0) {
        sleep_until(overlay, next_ns);
        resume_askers(overlay);
        answer_questions(overlay);
    }
}

/* ---- processes that ask ---- */

#define TURNS 4u
/* A turn begins after this part of the time, in eighths. */
static const uint32_t turn_begins[TURNS + 1] = {0, 1, 2, 4, 8};

typedef struct asking {
    const wefti_asked_rank_t *ranks;
    uint32_t count;
    wefti_wire_t wires[TURNS]; /* to the first ranks */
} asking_t;

static weft_status_t dial(const wefti_asked_rank_t *rank, wefti_wire_t *out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    size_t bytes = strnlen(rank->name, WEFTI_ASK_NAME_BYTES);
    memcpy(address.sun_path + 1, rank->name, bytes);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes)) != 0) {
        int error_number = errno;
        if (fd >= 0) {
            close(fd);
        }
        return wefti_error_errno(WEFT_ERR_SYSTEM, error_number, "cannot ask the rank of process %d",
                                 (int)rank->pid);
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 ||
        credentials.pid != rank->pid) {
        close(fd);
        return wefti_error(WEFT_ERR_SYSTEM, "cannot ask the rank of process %d: process %d answers",
                           (int)rank->pid, (int)credentials.pid);
    }
    wefti_wire_init(out, fd, ANSWER_BYTES, NULL);
    return WEFT_OK;
}

static weft_status_t ask_turn(asking_t *asking, uint32_t turn, uint32_t kind)
{
    const uint32_t question = turn | kind;
    uint32_t place = turn % (asking->count < TURNS ? asking->count : TURNS);
    wefti_wire_t *wire = &asking->wires[place];
    if (wire->fd < 0) {
        WEFT_RETURN_IF_ERROR(dial(&asking->ranks[place], wire));
    }
    weft_status_t status = wefti_wire_send(wire, WEFTI_ASK, &question, sizeof question, NULL, 0);
    if (status != WEFT_OK) { /* it has stopped reading, or has ended */
        wefti_wire_deinit(wire);
        return wefti_error(WEFT_ERR_SYSTEM, "the rank of process %d has closed its connection",
                           (int)asking->ranks[place].pid);
    }
    return WEFT_OK;
}

/* True: answered returned true. */
static bool receive(wefti_wire_t *wire,
                    bool (*answered)(void *user, const void *data, size_t bytes), void *user)
{
    for (;;) {
        wefti_frame_t frame;
        weft_status_t status = wefti_wire_receive(wire, &frame);
        if (status == WEFT_OK && frame.kind == WEFTI_REPLY) {
            if (answered(user, frame.body, frame.bytes)) {
                return true;
            }
            continue;
        }
        if (status != WEFT_AGAIN) {
            wefti_wire_deinit(wire);
        }
        return false;
    }
}

/* Waits for answers, or until then. False: there is nobody to wait for. */
static bool await_answers(asking_t *asking, uint64_t until_ns)
{
    struct pollfd fds[TURNS];
    bool some = false;
    uint64_t now = wefti_now_ns(), left = until_ns > now ? until_ns - now : 0;
    for (uint32_t i = 0; i < TURNS; i++) {
        fds[i] = (struct pollfd){.fd = asking->wires[i].fd, .events = POLLIN};
        some = some || asking->wires[i].fd >= 0;
    }
    if (some) {
        (void)poll(fds, TURNS, (int)((left + 999999) / 1000000));
    }
    return some;
}

weft_status_t wefti_ask(const wefti_asked_rank_t *ranks, uint32_t count, uint64_t wait_ns,
                        uint32_t kind, bool (*answered)(void *user, const void *data, size_t bytes),
                        void *user)
{
    asking_t asking = {.ranks = ranks, .count = count};
    uint64_t began = wefti_now_ns();
    weft_status_t status = WEFT_AGAIN;
    bool all = false, asked = false;
    for (uint32_t i = 0; i < TURNS; i++) {
        asking.wires[i].fd = -1;
    }
    for (uint32_t turn = 0; turn < TURNS && count > 0 && !all; turn++) {
        uint64_t until = began + wait_ns / 8 * turn_begins[turn + 1];
        status = ask_turn(&asking, turn, kind);
        asked = asked || status == WEFT_OK;
        while (!all && await_answers(&asking, until)) {
            for (uint32_t i = 0; i < TURNS && !all; i++) {
                all = asking.wires[i].fd >= 0 && receive(&asking.wires[i], answered, user);
            }
            if (wefti_now_ns() >= until) {
                break;
            }
        }
    }
    for (uint32_t i = 0; i < TURNS; i++) {
        wefti_wire_deinit(&asking.wires[i]);
    }
    return all ? WEFT_OK : asked ? WEFT_AGAIN : status;
}
