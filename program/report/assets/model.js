/* model.js - what each rank runs and holds and waits for, and when, from the rows of an item. */

const NEAR = 1e-6; /* sums of fractions may differ from whole ticks in their last bits */
const TICKS = {F: 1, B: 2, I: 1, W: 1};
const PASS = {F: 0, B: 1, I: 1, W: 2};
/* Names of colours, by kind and half of the stages. */
const LOOKS = ["f0", "f1", "b0", "b1", "i0", "i1", "w0", "w1"];

/* A plan: one flat list of actions, rank by rank, and look-ups in it. */
class Plan {
    constructor(item) {
        const ranks = item.grid.ranks;
        this.item = item;
        this.facts = item.facts;
        this.rankCount = ranks.length;
        this.stageCount = item.facts.stages;
        this.microbatchCount = item.facts.microbatches;
        this.begin = new Uint32Array(this.rankCount + 1);
        ranks.forEach((row, rank) => {
            this.begin[rank + 1] = this.begin[rank] + row.kind.length;
        });
        this.count = this.begin[this.rankCount];
        this.kind = ranks.map((row) => row.kind).join("");
        this.stage = Int32Array.from(ranks.flatMap((row) => row.stage));
        this.microbatch = Int32Array.from(ranks.flatMap((row) => row.microbatch));
        this.start = new Float64Array(this.count);
        this.end = new Float64Array(this.count);
        this.length = item.facts.ticks;
        this.isCosted = item.facts.timeline === "costed";
        this.rankOf = new Uint16Array(this.count);
        ranks.forEach((row, rank) => this.placeRank(row, rank));
        this.indexPasses();
        this.countHeld();
        this.look = Uint8Array.from({length: this.count}, (_, action) => 2 * "FBIW".indexOf(this.kind[action]) + this.half(action));
        this.classes = Array.from({length: this.count}, (_, action) => this.findClass(action));
    }

    placeRank(row, rank) {
        let time = 0;
        for (let i = 0; i < row.kind.length; i++) {
            const action = this.begin[rank] + i;
            this.rankOf[action] = rank;
            this.start[action] = time + row.gap[i];
            time = this.start[action] + (row.ticks ? row.ticks[i] : TICKS[row.kind[i]]);
            this.end[action] = time;
        }
    }

    indexPasses() {
        this.passes = new Int32Array(3 * this.stageCount * this.microbatchCount).fill(-1);
        for (let action = 0; action < this.count; action++) {
            this.passes[this.place(PASS[this.kind[action]], this.stage[action], this.microbatch[action])] =
                action;
        }
    }

    place(pass, stage, microbatch) {
        return (pass * this.stageCount + stage) * this.microbatchCount + microbatch;
    }

    /* The action, or -1. */
    find(pass, stage, microbatch) {
        if (stage < 0 || stage >= this.stageCount) {
            return -1;
        }
        return this.passes[this.place(pass, stage, microbatch)];
    }

    /* The action that releases the payload when it ends. */
    release(stage, microbatch) {
        if (this.item.grid.forward_only) {
            return this.find(0, stage, microbatch);
        }
        const weight = this.find(2, stage, microbatch);
        return weight >= 0 ? weight : this.find(1, stage, microbatch);
    }

    /* After each action: forwards of its rank whose payload is still held. */
    countHeld() {
        this.held = new Int32Array(this.count);
        for (let rank = 0; rank < this.rankCount; rank++) {
            let held = 0;
            for (let action = this.begin[rank]; action < this.begin[rank + 1]; action++) {
                held += this.kind[action] === "F" ? 1 : 0;
                held -= this.release(this.stage[action], this.microbatch[action]) === action ? 1 : 0;
                this.held[action] = held;
            }
        }
    }

    label(action) {
        const replica = this.item.grid.replica_of[this.microbatch[action]] ? "\u2032" : "";
        return this.stage[action] + this.kind[action] + this.microbatch[action] + replica;
    }

    /* 0: the lower half of the stages, or one stage per rank; 1: the upper half. */
    half(action) {
        return this.stageCount > this.rankCount && 2 * this.stage[action] >= this.stageCount ? 1 : 0;
    }

    /* The last action of a rank for which times[action] <= time; before the first: begin - 1. */
    last(times, rank, time) {
        let low = this.begin[rank] - 1;
        let high = this.begin[rank + 1] - 1;
        while (low < high) {
            const middle = (low + high + 1) >> 1;
            if (times[middle] <= time + NEAR) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        return low;
    }

    /* What a rank runs in [time, time + 1): the last action that begins before the end of it, or -1. */
    running(rank, tick) {
        const action = this.last(this.start, rank, tick + 1 - 2 * NEAR);
        return action >= this.begin[rank] && this.end[action] > tick + NEAR ? action : -1;
    }

    /* Copies held after that tick. */
    heldAfter(rank, tick) {
        const action = this.last(this.end, rank, tick + 1);
        return action >= this.begin[rank] ? this.held[action] : 0;
    }

    producer(action) {
        const pass = PASS[this.kind[action]];
        if (pass === 2) {
            return -1;
        }
        return this.find(pass, this.stage[action] + (pass === 0 ? -1 : 1), this.microbatch[action]);
    }

    /* The action that reads what `action` sends; -1 if it sends nothing. */
    consumer(action) {
        const pass = PASS[this.kind[action]];
        return pass === 2 ? -1 : this.find(pass, this.stage[action] + (pass === 0 ? 1 : -1), this.microbatch[action]);
    }

    /* True if its input comes from another rank. */
    isRemote(action) {
        const producer = this.producer(action);
        return producer >= 0 && this.rankOf[producer] !== this.rankOf[action];
    }

    /* The handoff that `action` consumes; null if it consumes none.  The class is the core's: hidden if
       the receiver starts another action between the producer's end and the consumer. */
    handoff(action) {
        const producer = this.producer(action);
        if (producer < 0) {
            return null;
        }
        const rank = this.rankOf[action];
        const between = [];
        for (let i = action - 1; i >= this.begin[rank] && this.start[i] >= this.end[producer] - NEAR; i--) {
            between.unshift(i);
        }
        return {producer, consumer: action, between, class: this.classes[action]};
    }

    classOf(producer, action, isBetween) {
        const rank = this.rankOf[action];
        if (this.rankOf[producer] === rank) {
            return "local";
        }
        if (!this.isCosted) {
            return isBetween ? "hidden" : "exposed";
        }
        const before = action > this.begin[rank] ? this.end[action - 1] : 0;
        return this.start[action] > Math.max(before, this.end[producer]) + NEAR ? "exposed" : "hidden";
    }

    /* The class of what an action consumes; "" if it consumes nothing. */
    handoffClass(action) {
        return this.classes[action];
    }

    findClass(action) {
        const producer = this.producer(action);
        if (producer < 0) {
            return "";
        }
        const rank = this.rankOf[action];
        const before = action - 1;
        return this.classOf(producer, action, before >= this.begin[rank] && this.start[before] >= this.end[producer] - NEAR);
    }

    /* Leases of a stage's payload slots, each the lowest free one: [{slot, microbatch, forward,
       release}]. */
    leases(stage, replica = 0) {
        const rank = this.item.grid.placement[replica * this.stageCount + stage];
        const leases = [];
        const owner = [];
        for (let action = this.begin[rank]; action < this.begin[rank + 1]; action++) {
            const microbatch = this.microbatch[action];
            if (this.stage[action] !== stage || (this.item.grid.replica_of[microbatch] || 0) !== replica) {
                continue;
            }
            if (this.kind[action] === "F") {
                let slot = owner.findIndex((held) => held === undefined);
                slot = slot < 0 ? owner.length : slot;
                owner[slot] = microbatch;
                leases.push({slot, microbatch, forward: action, release: this.release(stage, microbatch)});
            }
            if (this.release(stage, microbatch) === action) {
                owner[owner.indexOf(microbatch)] = undefined;
            }
        }
        return leases;
    }

    /* Copies that fit a rank's budget; null if its bytes or the budget are unknown. */
    budgetCopies(rank) {
        const memory = this.facts.memory[rank];
        const peak = this.facts.peak_copies[rank];
        if (this.facts.budget_bytes === null || !memory || !memory.payload_bytes || peak === 0) {
            return null;
        }
        const rest = memory.total_bytes - memory.payload_bytes;
        return (this.facts.budget_bytes - rest) / (memory.payload_bytes / peak);
    }

    /* The same order as soon as possible, each pass lasting ticksOf(action), transfers free. */
    replay(ticksOf) {
        const start = new Float64Array(this.count);
        const end = new Float64Array(this.count).fill(-1);
        const next = this.begin.slice(0, this.rankCount);
        for (let isMoving = true; isMoving;) {
            isMoving = false;
            for (let rank = 0; rank < this.rankCount; rank++) {
                while (next[rank] < this.begin[rank + 1]) {
                    const action = next[rank];
                    const producer = this.producer(action);
                    if (producer >= 0 && end[producer] < 0) {
                        break;
                    }
                    const before = action > this.begin[rank] ? end[action - 1] : 0;
                    start[action] = Math.max(before, producer >= 0 ? end[producer] : 0);
                    end[action] = start[action] + ticksOf(action);
                    next[rank]++;
                    isMoving = true;
                }
            }
        }
        return {start, end, length: end.reduce((most, time) => Math.max(most, time), 0)};
    }
}

/* One recorded step: times in milliseconds after the begin of its first action. */
class Measured {
    constructor(plan, step) {
        const spans = plan.item.trace.steps[step];
        this.plan = plan;
        this.step = plan.item.trace.first + step;
        for (const name of ["begin", "ready", "claim", "start", "end", "sent"]) {
            this[name] = new Float64Array(plan.count);
        }
        spans.forEach((row, rank) => {
            let time = 0;
            for (let i = 0; 6 * i < row.length; i++) {
                const action = plan.begin[rank] + i;
                this.begin[action] = time += row[6 * i];
                this.ready[action] = time += row[6 * i + 1];
                this.claim[action] = time += row[6 * i + 2];
                this.start[action] = time += row[6 * i + 3];
                this.end[action] = time += row[6 * i + 4];
                this.sent[action] = time += row[6 * i + 5];
            }
        });
        for (const name of ["begin", "ready", "claim", "start", "end", "sent"]) {
            this[name].forEach((time, action, times) => {
                times[action] = time / 1e6;
            });
        }
        this.length = this.sent.reduce((most, time) => Math.max(most, time), 0);
        this.placeTransfers((plan.item.trace.transfers || [])[step]);
        this.comparePlan();
    }

    /* By the action that reads it: begin and end of the transfer (NaN if unknown), and how long it kept the
       device of its source and of its target occupied for a late peer. */
    placeTransfers(ranks) {
        const plan = this.plan;
        for (const name of ["moveBegin", "moveEnd", "residentOut", "residentIn"]) {
            this[name] = new Float64Array(plan.count).fill(name.startsWith("move") ? NaN : 0);
        }
        (ranks || []).forEach((row, rank) => {
            let place = 0;
            for (let action = plan.begin[rank]; action < plan.begin[rank + 1]; action++) {
                if (!plan.isRemote(action)) {
                    continue;
                }
                const [begin, length, source, target] = row.slice(place, place += 4).map((time) => time / 1e6);
                this.moveBegin[action] = length < 0 ? NaN : begin;
                this.moveEnd[action] = length < 0 ? NaN : begin + length;
                this.residentOut[action] = source;
                this.residentIn[action] = target;
            }
        });
    }

    /* How long its rank waited for the transfer that an action reads. */
    exposedMove(action) {
        return Math.max(0, Math.min(this.moveEnd[action], this.ready[action]) - Math.max(this.moveBegin[action], this.begin[action]));
    }

    /* All transfers of the step: {count, unknown, moved, exposed, resident}, in milliseconds. */
    transfers() {
        const sums = {count: 0, unknown: 0, moved: 0, exposed: 0, resident: 0};
        for (let action = 0; action < this.plan.count; action++) {
            if (!this.plan.isRemote(action)) {
                continue;
            }
            sums.count++;
            sums.resident += this.residentOut[action] + this.residentIn[action];
            if (Number.isNaN(this.moveEnd[action])) {
                sums.unknown++;
            } else {
                sums.moved += this.moveEnd[action] - this.moveBegin[action];
                sums.exposed += this.exposedMove(action);
            }
        }
        return sums;
    }

    /* The plan with the median pass of each stage and kind; for each action the time lost just before it,
       and how much longer than that median it ran. */
    comparePlan() {
        const plan = this.plan;
        const passes = new Map();
        const key = (action) => plan.kind[action] + plan.stage[action];
        for (let action = 0; action < plan.count; action++) {
            passes.set(key(action), passes.get(key(action)) || []);
            passes.get(key(action)).push(this.end[action] - this.start[action]);
        }
        for (const [name, times] of passes) {
            times.sort((left, right) => left - right);
            passes.set(name, (times[(times.length - 1) >> 1] + times[times.length >> 1]) / 2);
        }
        this.planned = plan.replay((action) => passes.get(key(action)));
        this.long = Float64Array.from(this.end, (end, action) => end - this.start[action] - passes.get(key(action)));
        this.lost = new Float64Array(plan.count);
        for (let action = 0; action < plan.count; action++) {
            const isFirst = action === plan.begin[plan.rankOf[action]];
            const gap = this.start[action] - (isFirst ? 0 : this.end[action - 1]);
            const plannedGap = this.planned.start[action] - (isFirst ? 0 : this.planned.end[action - 1]);
            this.lost[action] = gap - plannedGap;
        }
    }

    /* A rank's time of the step by use, in milliseconds. */
    shares(rank) {
        const shares = {compute: 0, exposed: 0, credit: 0};
        for (let action = this.plan.begin[rank]; action < this.plan.begin[rank + 1]; action++) {
            shares.compute += this.end[action] - this.start[action];
            shares.exposed += this.ready[action] - this.begin[action];
            shares.credit += this.claim[action] - this.ready[action];
        }
        shares.other = this.length - shares.compute - shares.exposed - shares.credit;
        return shares;
    }

    /* Within them: waits while the input moved, and the time that the device was kept occupied. */
    beside(rank) {
        const beside = {moving: 0, resident: 0};
        for (let action = this.plan.begin[rank]; action < this.plan.begin[rank + 1]; action++) {
            beside.moving += this.exposedMove(action) || 0;
            beside.resident += this.residentIn[action] + this.residentOfOutput(action);
        }
        return beside;
    }

    /* How long what `action` sends kept this rank's device occupied. */
    residentOfOutput(action) {
        const reader = this.plan.consumer(action);
        return reader >= 0 ? this.residentOut[reader] : 0;
    }
}
