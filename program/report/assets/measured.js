/* measured.js - a recorded step in real time, below the planned timeline of the same order. */

/* Below each rank's actions: a row for the activations that it receives, and one for the gradients. */
const WAY = 4, WAY_GAP = 1;

class MeasuredView {
    constructor(shared, plan) {
        this.shared = shared;
        this.plan = plan;
        this.row = rowHeight(plan.rankCount);
        this.ways = 2 * (plan.rankCount <= 32 ? WAY + WAY_GAP : 3) + 2;
        this.stepCount = plan.item.trace.steps.length;
        this.holder = make("div");
        this.element = make("div", null, this.holder);
        shared.step = shared.step >= 0 && shared.step < this.stepCount ? shared.step : this.stepCount - 1;
        this.show();
    }

    close() {
        this.timeline.close();
    }

    show() {
        if (this.timeline) {
            this.timeline.close();
        }
        this.measured = new Measured(this.plan, this.shared.step);
        this.span = Math.max(this.measured.length, this.measured.planned.length) || 1;
        this.limit = this.measured.length * 0.01;
        this.cursor = this.cursorOfShared();
        this.timeline = this.makeTimeline();
        this.here = make("div", {id: "here", class: "note", "aria-live": "polite"});
        this.holder.replaceChildren(this.numbers(), card("", this.tools(), this.timeline.element, this.here, this.legend(), this.data()),
            columns([card("", this.sharesTable())], [card("", this.lossTable())]));
        this.refresh();
    }

    /* The action under the shared cursor of the schedule, if there is one. */
    cursorOfShared() {
        const action = this.plan.running(Math.min(this.shared.rank, this.plan.rankCount - 1), this.shared.tick);
        return action >= 0 ? action : this.plan.begin[this.shared.rank];
    }

    makeTimeline() {
        const grid = AXIS + this.plan.rankCount * this.row, measured = grid + this.plan.rankCount * this.ways;
        return new Timeline({
            span: this.span, zoomMost: 4000 / (this.span / 20 || 1), zoomFirst: 0,
            label: "Planned and measured rows, time across. Arrow keys move from action to action, Enter follows a microbatch.",
            cursor: () => ({from: this.measured.start[this.cursor], to: this.measured.end[this.cursor]}),
            onPick: (place, time, y) => this.pick(place, time, y),
            onKey: (event) => this.onKey(event),
            tip: (place, time, y) => this.tip(place, time, y),
            panels: [
                {title: "Planned: the same order as soon as possible, each pass as long as the median of its stage, transfers free",
                    height: () => grid, key: () => this.shared.follow, draw: (...all) => this.drawPlanned(...all),
                    over: (...all) => this.overRows(this.measured.planned, ...all)},
                {title: "Measured, and below each rank the transfers to it: forward, then backward", height: () => measured, key: () => this.shared.follow, draw: (...all) => this.drawMeasured(...all),
                    over: (...all) => this.overRows(this.measured, ...all)},
            ],
        });
    }

    numbers() {
        const measured = this.measured, plan = this.plan;
        const all = {compute: 0, exposed: 0, credit: 0, other: 0};
        for (let rank = 0; rank < plan.rankCount; rank++) {
            const shares = measured.shares(rank);
            Object.keys(all).forEach((name) => { all[name] += shares[name]; });
        }
        const total = measured.length * plan.rankCount;
        const moves = measured.transfers();
        const hidden = moves.moved > 0 ? percent(1 - moves.exposed / moves.moved) : "\u2013";
        return stats([
            ["Step", String(measured.step), `${this.stepCount} kept`],
            ["Measured", milliseconds(measured.length), "from the first action to the last"],
            ["Planned", milliseconds(measured.planned.length), "at median passes, transfers free"],
            ["Idle", percent(1 - all.compute / total), "of all ranks, measured"],
            ["Bubble", percent(plan.facts.bubble), "planned in ticks"],
            ["Exposed wait", milliseconds(all.exposed), "sum of all ranks"],
            ["Transfers", milliseconds(moves.moved), moves.unknown === moves.count ? "not known: the transport does not say"
                : `sum; ${hidden} hidden${moves.unknown > 0 ? `, ${number(moves.unknown)} unknown` : ""}`],
            moves.resident > 0 ? ["Resident wait", milliseconds(moves.resident), "devices held for late peers"] : null,
        ]);
    }

    tools() {
        const zoom = (text, factor, title) => make("button", {type: "button", title, "aria-label": title,
            onclick: () => this.timeline.zoom(factor)}, text);
        const pick = make("select", {id: "step", onchange: () => {
            this.shared.step = Number(pick.value);
            this.show();
        }}, Array.from({length: this.stepCount}, (_, step) => make("option", {value: step, selected: step === this.shared.step},
            String(this.plan.item.trace.first + step))));
        return make("div", {class: "tools"}, make("label", null, "Step", pick),
            make("span", {class: "group"}, zoom("\u2212", 1 / 1.5, "Zoom out"), zoom("+", 1.5, "Zoom in"), zoom("Whole", 0, "Fit the whole step")));
    }

    legend() {
        const item = (color, text) => make("li", null, make("span", {class: "swatch", style: `background:var(--${color})`}), text);
        return make("ul", {class: "legend"}, item("f0", "Forward"), this.plan.kind.includes("B") ? item("b0", "Backward") : null,
            item("exposed", "Exposed wait: for an input"), item("credit", "Wait for a free slot"), item("launch", "Handing over an output"),
            item("hidden", "Transfer while its receiver works"), item("exposed", "Transfer that its receiver waits for"),
            item("resident", "Resident wait: a late peer kept the device occupied"),
            make("li", null, make("span", {class: "swatch", style: "border:2px solid var(--exposed)"}), "Began late: 1 % of the step lost just before it"),
            make("li", null, make("span", {class: "swatch", style: "border:2px solid var(--ink)"}), "Ran long: 1 % of the step beyond the median"));
    }

    rows(times) {
        const shared = this.shared;
        return {times, top: AXIS, height: times === this.measured ? this.row + this.ways : this.row, cell: this.row, first: 0, count: this.plan.rankCount, isTicks: false,
            isFaint: (action) => shared.follow >= 0 && this.plan.microbatch[action] !== shared.follow,
            isMarked: (action) => shared.follow >= 0 && this.plan.microbatch[action] === shared.follow};
    }

    drawGround(context, timeline, width, length, pitch) {
        drawAxis(context, timeline, width, (time) => `${Number(time.toPrecision(6))} ms`, 0);
        for (let rank = 0; rank < this.plan.rankCount; rank++) {
            context.fillStyle = palette.empty;
            context.fillRect(Math.max(LEFT, timeline.xAt(0)), AXIS + rank * pitch + 1,
                Math.max(0, timeline.xAt(length) - Math.max(LEFT, timeline.xAt(0))), this.row - 2);
        }
    }

    drawPlanned(context, timeline, width, height) {
        const rows = this.rows(this.measured.planned);
        this.drawGround(context, timeline, width, this.measured.planned.length, this.row);
        clipped(context, width, height, () => {
            drawRows(context, timeline, this.plan, rows);
        });
    }

    overRows(times, context, timeline, width, height) {
        clipped(context, width, height, () => this.drawHere(context, timeline, times));
        drawNames(context, this.plan, this.rows(times), this.plan.rankOf[this.cursor]);
    }

    drawMeasured(context, timeline, width, height) {
        const rows = this.rows(this.measured);
        this.drawGround(context, timeline, width, this.measured.length, this.row + this.ways);
        clipped(context, width, height, () => {
            this.drawWaits(context, timeline);
            this.drawTransfers(context, timeline);
            drawRows(context, timeline, this.plan, {...rows, after: (action, box) => this.drawLate(context, action, box)});
        });
    }

    /* Thinner than a pass, in the middle of the row. */
    drawWaits(context, timeline) {
        const {plan, measured} = this;
        const parts = [["exposed", measured.begin, measured.ready], ["credit", measured.ready, measured.claim], ["launch", measured.end, measured.sent]];
        const from = timeline.timeAt(LEFT), to = timeline.timeAt(timeline.width);
        for (let rank = 0; rank < plan.rankCount; rank++) {
            const y = AXIS + rank * (this.row + this.ways) + this.row / 2 - this.row / 7;
            for (let action = Math.max(plan.begin[rank], plan.last(measured.sent, rank, from));
                action < plan.begin[rank + 1] && measured.begin[action] < to; action++) {
                for (const [name, begins, ends] of parts) {
                    const width = (ends[action] - begins[action]) * timeline.scale;
                    if (width > 0.3) {
                        context.fillStyle = palette[name];
                        context.fillRect(timeline.xAt(begins[action]), y, Math.max(width, 0.5), this.row / 3.5);
                    }
                }
            }
        }
    }

    /* Below the rank that receives: green while it runs passes, red while it waits; before it the time
       that the transfer occupied a device.  Backward is below forward. */
    drawTransfers(context, timeline) {
        const {plan, measured} = this;
        const from = timeline.timeAt(LEFT), to = timeline.timeAt(timeline.width);
        const thick = this.plan.rankCount <= 32 ? WAY : 2;
        for (let rank = 0; rank < plan.rankCount; rank++) {
            const top = AXIS + rank * (this.row + this.ways) + this.row;
            for (let action = Math.max(plan.begin[rank], plan.last(measured.end, rank, from)); action < plan.begin[rank + 1]; action++) {
                const resident = measured.residentIn[action] + measured.residentOut[action];
                if (!(measured.moveBegin[action] - resident < to) || !(measured.moveEnd[action] > from)) {
                    continue;
                }
                const y = top + (plan.kind[action] === "F" ? 0 : thick + WAY_GAP);
                context.globalAlpha = this.shared.follow >= 0 && plan.microbatch[action] !== this.shared.follow ? 0.22 : 1;
                this.drawTransfer(context, timeline, action, {y, thick, resident});
            }
        }
        context.globalAlpha = 1;
    }

    drawTransfer(context, timeline, action, place) {
        const {measured} = this;
        const begin = measured.moveBegin[action], end = measured.moveEnd[action];
        const waits = measured.exposedMove(action) > 0 ? Math.max(begin, measured.begin[action]) : end;
        const parts = [["resident", begin - place.resident, begin], ["hidden", begin, waits], ["exposed", waits, end]];
        for (const [name, first, last] of parts) {
            if (last > first) {
                context.fillStyle = palette[name];
                context.fillRect(timeline.xAt(first), place.y, Math.max(0.5, (last - first) * timeline.scale - 0.5), place.thick);
            }
        }
    }

    drawLate(context, action, box) {
        if (this.measured.lost[action] > this.limit || this.measured.long[action] > this.limit) {
            context.strokeStyle = this.measured.lost[action] > this.limit ? palette.exposed : palette.ink;
            context.lineWidth = 2;
            context.strokeRect(box.x + 1, box.y + 1, Math.max(1, box.width - 2), box.height - 2);
        }
    }

    drawHere(context, timeline, times) {
        const pitch = times === this.measured ? this.row + this.ways : this.row;
        const x = timeline.xAt(times.start[this.cursor]);
        const width = Math.max(2, (times.end[this.cursor] - times.start[this.cursor]) * timeline.scale);
        context.strokeStyle = palette.cursor;
        context.lineWidth = 2;
        context.strokeRect(x, AXIS + this.plan.rankOf[this.cursor] * pitch, width, this.row);
        context.globalAlpha = 0.5;
        context.fillStyle = palette.cursor;
        context.fillRect(x, AXIS, 1, this.plan.rankCount * pitch);
        context.globalAlpha = 1;
    }

    refresh() {
        const {plan, measured, cursor} = this;
        const planned = measured.planned.start[cursor];
        const late = measured.start[cursor] - planned;
        this.here.textContent = `${plan.label(cursor)} on rank ${plan.rankOf[cursor]}: ran ${milliseconds(measured.end[cursor] - measured.start[cursor])} `
            + `from ${milliseconds(measured.start[cursor])}; planned from ${milliseconds(planned)}, so ${milliseconds(Math.abs(late))} ${late < 0 ? "early" : "late"}; `
            + `waited ${milliseconds(measured.ready[cursor] - measured.begin[cursor])} for its input, ${milliseconds(measured.claim[cursor] - measured.ready[cursor])} for a slot.${this.move(cursor)}`;
        this.timeline.invalidate();
        this.shared.changed();
    }

    /* How the input of `action` arrived, in words. */
    move(action) {
        const {plan, measured} = this;
        if (!plan.isRemote(action)) {
            return "";
        }
        if (Number.isNaN(measured.moveEnd[action])) {
            return " When its input moved is not known.";
        }
        const length = measured.moveEnd[action] - measured.moveBegin[action], exposed = measured.exposedMove(action);
        const resident = measured.residentIn[action] + measured.residentOut[action];
        return ` Its input moved for ${milliseconds(length)}, ${exposed > 0 ? `${milliseconds(exposed)} of it waited for` : "all hidden"}`
            + `${resident > 0 ? `, after ${milliseconds(resident)} of resident wait` : ""}; planned ${plan.handoffClass(action)}.`;
    }

    moveTo(action) {
        this.cursor = Math.max(0, Math.min(this.plan.count - 1, action));
        this.shared.rank = this.plan.rankOf[this.cursor];
        this.shared.tick = Math.floor(this.plan.start[this.cursor] + NEAR);
        this.refresh();
        this.timeline.reveal();
    }

    /* Moves to the action of another rank that begins nearest before this one. */
    across(far) {
        const rank = this.plan.rankOf[this.cursor] + far;
        if (rank >= 0 && rank < this.plan.rankCount) {
            const action = this.plan.last(this.measured.start, rank, this.measured.start[this.cursor]);
            this.moveTo(Math.max(action, this.plan.begin[rank]));
        }
    }

    follow(microbatch) {
        this.shared.follow = microbatch;
        this.refresh();
    }

    onKey(event) {
        const {plan, cursor} = this;
        const rank = plan.rankOf[cursor];
        const keys = {
            ArrowLeft: () => this.moveTo(Math.max(plan.begin[rank], cursor - 1)), ArrowRight: () => this.moveTo(Math.min(plan.begin[rank + 1] - 1, cursor + 1)),
            ArrowUp: () => this.across(-1), ArrowDown: () => this.across(1), Home: () => this.moveTo(plan.begin[rank]),
            End: () => this.moveTo(plan.begin[rank + 1] - 1), Enter: () => this.follow(plan.microbatch[cursor]), Escape: () => this.follow(-1),
        };
        if (!(event.key in keys)) {
            return false;
        }
        keys[event.key]();
        return true;
    }

    actionAt(place, time, y) {
        const times = place === 0 ? this.measured.planned : this.measured;
        const pitch = place === 0 ? this.row : this.row + this.ways;
        const rank = Math.floor((y - AXIS) / pitch);
        if (rank < 0 || rank >= this.plan.rankCount || time < 0 || y < AXIS) {
            return -1;
        }
        if (y - AXIS - rank * pitch >= this.row) {
            return this.transferAt(rank, time, y - AXIS - rank * pitch - this.row);
        }
        const action = this.plan.last(times.start, rank, time);
        return action >= this.plan.begin[rank] && times.end[action] > time ? action : -1;
    }

    /* The action that reads the transfer to a rank at that time, in that row; -1 if there is none. */
    transferAt(rank, time, below) {
        const {plan, measured} = this;
        const isForward = below < (plan.rankCount <= 32 ? WAY : 2) + WAY_GAP / 2;
        for (let action = plan.begin[rank]; action < plan.begin[rank + 1]; action++) {
            if ((plan.kind[action] === "F") === isForward && measured.moveBegin[action] <= time && measured.moveEnd[action] > time) {
                return action;
            }
        }
        return -1;
    }

    pick(place, time, y) {
        const action = this.actionAt(place, time, y);
        if (action >= 0) {
            this.shared.follow = this.plan.microbatch[action] === this.shared.follow && action === this.cursor ? -1 : this.shared.follow;
            this.moveTo(action);
        }
    }

    tip(place, time, y) {
        const action = this.actionAt(place, time, y);
        if (action < 0) {
            return "";
        }
        const times = place === 0 ? this.measured.planned : this.measured;
        return `${this.plan.label(action)} on rank ${this.plan.rankOf[action]}\n${milliseconds(times.start[action])} to ${milliseconds(times.end[action])}`
            + (place === 1 ? `\nlost just before it: ${milliseconds(Math.max(0, this.measured.lost[action]))}` : "")
            + (place === 1 && this.move(action) ? `\n${this.move(action).trim()}` : "");
    }

    sharesTable() {
        const measured = this.measured;
        const colors = {compute: "f0", exposed: "exposed", credit: "credit", other: "empty"};
        const rows = Array.from({length: this.plan.rankCount}, (_, rank) => {
            const shares = measured.shares(rank);
            const bar = make("span", {class: "stackbar", "aria-hidden": "true"}, Object.entries(colors).map(([name, color]) => make("span",
                {style: `width:${Math.max(0, 100 * shares[name] / measured.length).toFixed(3)}%;background:var(--${color})`})));
            const beside = measured.beside(rank);
            return [`rank ${rank}`, bar, number(shares.compute, 2), number(shares.exposed, 2), number(beside.moving, 2), number(shares.credit, 2),
                number(shares.other, 2), number(beside.resident, 2)];
        });
        const body = table("", ["Rank", "", "#Compute", "#Exposed", "#In transfer", "#Slot wait", "#Other", "#Resident"], rows);
        body.id = "shares";
        return make("div", null, make("h2", null, "Where each rank's time went"), make("p", {class: "note"},
            "Milliseconds of this step. In transfer: the part of the exposed wait in which the input moved; in the rest its producer ran. Other: before the first and after the last action, "
            + "launches, sends. Resident: in addition, the time that a late peer kept the device occupied."), scrolled(body, "Shares"));
    }

    lossTable() {
        const {plan, measured} = this;
        const excess = (action) => Math.max(measured.lost[action], measured.long[action]);
        const worst = Array.from({length: plan.count}, (_, action) => action).filter((action) => excess(action) > this.limit)
            .sort((left, right) => excess(right) - excess(left));
        const rows = worst.slice(0, 100).map((action) => [make("button", {type: "button", class: "quiet", onclick: () => this.moveTo(action)},
            plan.label(action)), String(plan.rankOf[action]), number(Math.max(0, measured.lost[action]), 2), number(Math.max(0, measured.long[action]), 2), number(measured.ready[action] - measured.begin[action], 2),
        plan.isRemote(action) ? `${number(measured.exposedMove(action), 2)} (${plan.handoffClass(action)})` : "\u2013",
        number(measured.claim[action] - measured.ready[action], 2)]);
        const body = table(`${worst.length} ${worst.length === 1 ? "action" : "actions"} with more than 1 % of the step lost before it, or run longer than the median of its stage`,
            ["Action", "#Rank", "#Lost, ms", "#Longer, ms", "#Exposed, ms", "#In transfer, ms (planned)", "#Slot wait, ms"], rows);
        body.id = "differences";
        return make("div", null, make("h2", null, "Where planned and measured differ"), scrolled(body, "Differences"));
    }

    data() {
        const {plan, measured} = this;
        const text = (value) => number(value, 4);
        const known = (value) => (Number.isNaN(value) ? "\u2013" : text(value));
        return dataTable("the step", ["#rank", "action", "#begin ms", "#input ms", "#slot ms", "#pass ms", "#end ms", "#sent ms", "#planned ms", "#input moves ms", "#is there ms", "#resident ms"], plan.count,
            (action) => [String(plan.rankOf[action]), plan.label(action), text(measured.begin[action]), text(measured.ready[action]), text(measured.claim[action]),
                text(measured.start[action]), text(measured.end[action]), text(measured.sent[action]), text(measured.planned.start[action]),
                known(measured.moveBegin[action]), known(measured.moveEnd[action]), text(measured.residentIn[action] + measured.residentOut[action])]);
    }
}
