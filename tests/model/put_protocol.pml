/*
 * put_protocol.pml - one channel of ucx_put, checked by spin: slot_protocol.pml where what is
 * written is under way for a while.
 *
 * The counts and words are those of plugins/transports/ucx_put (struct put_lane, struct ucx_lane):
 * posted, started, ready and said of the source, released and said of the target.
 *
 * The source writes message k into one of DS send slots and posts it.  From then on UCX's progress
 * (mover) acts for it, whenever it likes, and the wire does what it was given, in any order:
 *
 *   started   payloads that are put: behind a credit, credit + D > started
 *   ready     payloads that a flush says are there: their send slots are free
 *   said      what the word `arrived` has been told; a word under way is not followed by another
 *
 *   source  reserve  ready > k - DS       write the send slot      posted = k + 1
 *   mover   start, flush, say             wire: payload in two stores; a word
 *   target  arrived > k                   read the slot            release: mover says `credit`
 *
 * At any point a rank may fail, alone or told by the other: its calls end, and it goes to rest.  It
 * may also rest at its deadline, with something left that has no credit; then the other gives up
 * what it waits for.  A rank that rests moves nothing any more and says "stop" behind all that it
 * has put; only then does the other give its memory back.  The source's word and the target's are
 * each written by one side.
 *
 * Checked: no leased or unread slot is overwritten, nothing stale or torn is read, nothing is
 * written to memory that was given back, no deadlock.  Each BUG_ switch breaks one rule:
 *
 *   BUG_NO_FLUSH        a payload counts as there once it is started
 *   BUG_SEND_SLOT_EARLY a send slot is free once its message is started
 *   BUG_NO_CREDIT       a payload is put without one
 *   BUG_CREDIT_EARLY    the credit is given at arrival, not at release
 *   BUG_STOP_OVERTAKES  "stop" does not wait for what is under way
 *   BUG_FREE_EARLY      memory is given back without the peer's stop
 *   BUG_MOVES_AT_REST   what gets its credit while its rank rests is still put
 */
#ifndef D
#define D 2
#endif
#ifndef DS
#define DS 1
#endif
#ifndef N
#define N (D + 2)
#endif

byte send_slot[DS];                /* at the source: sequence + 1 of what it holds */
byte head[D], tail[D];             /* at the target, in two stores */
byte posted, started, ready, said; /* the source's counts */
byte given, credit_said;           /* the target's: released without a hole; told to the source */
byte arrived, credit;              /* the two words, each at its reader */
byte word, credit_word;            /* words under way; 0: none */
byte half[N];                      /* of a payload under way: 0 not yet, 1 one store, 2 there */
bool leased[N], read_once[N];      /* ghosts */
bool failed_source, failed_target;
bool rests_source, rests_target;   /* its calls are over */
bool stop_source, stop_target;     /* the other has heard that it rests */
bool freed_source, freed_target;

/* --- the network: whatever it was given, in any order -------------------------------------- */

inline store(place, k)
{
    assert(!freed_target);
    assert(k < D || (!leased[k - D] && read_once[k - D]));
    place = send_slot[k % DS]
}

active proctype wire()
{
    byte k;

end:
    do
    :: atomic { started > 0 ->
        select(k : 0 .. N - 1);
        if
        :: k < started && half[k] == 0 -> store(head[k % D], k); half[k] = 1
        :: k < started && half[k] == 1 -> store(tail[k % D], k); half[k] = 2
        :: else
        fi;
        k = 0 }
    :: word > 0 -> d_step { assert(!freed_target); arrived = word; word = 0 }
    :: credit_word > 0 -> d_step { assert(!freed_source); credit = credit_word; credit_word = 0 }
    od
}

#ifdef BUG_NO_CREDIT
#define HAS_CREDIT true
#else
#define HAS_CREDIT (started < credit + D)
#endif
#ifdef BUG_NO_FLUSH
#define IS_THERE true
#else
#define IS_THERE (half[ready] == 2)
#endif

#ifdef BUG_MOVES_AT_REST
#define MOVES_SOURCE (!failed_source || rests_source)
#define MOVES_TARGET (!failed_target || rests_target)
#else
#define MOVES_SOURCE (!failed_source && !rests_source)
#define MOVES_TARGET (!failed_target && !rests_target)
#endif

/* --- progress: UCX moves, between the calls or in them ------------------------------------- */

active proctype mover()
{
end:
    do
    :: atomic { started < posted && MOVES_SOURCE && HAS_CREDIT -> started++ }
    :: atomic { ready < started && MOVES_SOURCE && IS_THERE -> ready++ }
    :: atomic { said < ready && word == 0 && MOVES_SOURCE -> said = ready; word = said }
    :: atomic { credit_said < given && credit_word == 0 && MOVES_TARGET ->
           credit_said = given; credit_word = given }
    od
}

/* --- the ranks ------------------------------------------------------------------------------ */

active proctype source()
{
    byte k;

    for (k : 0 .. N - 1) {
#ifdef BUG_SEND_SLOT_EARLY
        (failed_source || rests_target || k < DS || started > k - DS);
#else
        (failed_source || rests_target || k < DS || ready > k - DS);
#endif
        if
        :: failed_source || rests_target -> break
        :: else
        fi;
        send_slot[k % DS] = k + 1;
        posted = k + 1
    }
    /* Quiesce: everything leaves, unless it has failed or the deadline has come; then stop, behind
       what is under way. */
    if
    :: (failed_source || said == posted)
    :: true
    fi;
    rests_source = true;
#ifndef BUG_STOP_OVERTAKES
    (word == 0);
    for (k : 0 .. N - 1) {
        (k >= started || half[k] == 2)
    }
#endif
    stop_source = true;
#ifndef BUG_FREE_EARLY
    (stop_target);
#endif
    freed_source = true
}

active proctype target()
{
    byte next, oldest, k;

    do
    :: next < N && next < oldest + D ->
        (failed_target || rests_source || arrived > next);
        if
        :: failed_target || arrived <= next -> break
        :: else
        fi;
        d_step {
            assert(head[next % D] == next + 1 && tail[next % D] == next + 1);
            leased[next] = true;
            read_once[next] = true
        }
        next++;
#ifdef BUG_CREDIT_EARLY
        given = next
#endif
    :: oldest < next ->
        d_step {
            assert(head[oldest % D] == oldest + 1 && tail[oldest % D] == oldest + 1);
            leased[oldest] = false;
            oldest++;
        }
#ifndef BUG_CREDIT_EARLY
        given = oldest
#endif
    :: next == N && oldest == N -> break
    :: failed_target -> break
    od;
    if
    :: (failed_target || credit_said == given)
    :: true
    fi;
    rests_target = true;
#ifndef BUG_STOP_OVERTAKES
    (credit_word == 0);
#endif
    stop_target = true;
#ifndef BUG_FREE_EARLY
    (stop_source);
#endif
    freed_target = true
}

/* One fails, and the other is told, sooner or later. */
active proctype failure()
{
    if
    :: skip
    :: failed_source = true; failed_target = true
    :: failed_target = true; failed_source = true
    fi
}
