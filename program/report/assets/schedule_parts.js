/* schedule_parts.js - the cursor of the schedule, and the tables that follow it. */

Object.assign(ScheduleView.prototype, {
    actionAt(rank, tick) {
        return this.plan.running(rank, tick);
    },

    /* Updates the cursor at once, and the tables once for each frame, or after the cursor has stopped. */
    refresh() {
        const shared = this.shared;
        cancelAnimationFrame(this.frame);
        clearTimeout(this.rest);
        if (this.plan.rankCount <= LINES_MOST) {
            this.frame = requestAnimationFrame(() => this.refreshTables());
        } else {
            this.rest = setTimeout(() => this.refreshTables(), REST_MS);
        }
        this.slider.value = shared.tick;
        this.sliderText.textContent = `${number(shared.tick)} of ${number(this.tickCount - 1)}`;
        this.poolTitle.textContent = `Payload slots of stage ${shared.stage} (rank ${this.poolRank()}): from a microbatch's forward until its last backward`;
        this.stagePick.value = shared.stage;
        this.followInput.value = shared.follow >= 0 ? shared.follow : "";
        if (document.activeElement !== this.fromInput && document.activeElement !== this.toInput) {
            this.fromInput.value = this.windowFrom();
            this.toInput.value = this.windowTo();
        }
        this.timeline.invalidate();
        this.shared.changed();
    },

    refreshTables() {
        this.atTick.replaceChildren(this.tickTable());
        this.poolPart.replaceChildren(this.poolList());
        this.followPart.replaceChildren(this.followTable());
        this.handoffPart.replaceChildren(this.handoffTable());
        this.drawWindow();
    },

    moveTo(tick) {
        this.shared.tick = Math.max(0, Math.min(this.tickCount - 1, tick));
        this.window = null;
        this.refresh();
        this.timeline.reveal();
    },

    chooseRank(rank) {
        this.shared.rank = Math.max(0, Math.min(this.plan.rankCount - 1, rank));
        this.firstRow = Math.max(this.shared.rank - this.rowsShown + 1, Math.min(this.firstRow, this.shared.rank));
        this.refresh();
    },

    chooseStage(stage) {
        if (stage !== this.shared.stage) {
            this.shared.stage = stage;
            this.pool = this.plan.leases(stage);
        }
    },

    follow(microbatch) {
        this.shared.follow = microbatch >= 0 && microbatch < this.plan.microbatchCount ? microbatch : -1;
        this.refresh();
    },

    followHere() {
        const action = this.actionAt(this.shared.rank, this.shared.tick);
        if (action < 0) {
            return;
        }
        this.chooseStage(this.plan.stage[action]);
        this.follow(this.plan.microbatch[action]);
        byId("say").textContent = `following microbatch ${this.plan.microbatch[action]}`;
    },

    pick(place, time, y) {
        if (time < 0 || time >= this.plan.length) {
            return;
        }
        this.shared.tick = Math.min(this.tickCount - 1, Math.floor(time));
        this.window = null;
        const rank = this.firstRow + Math.floor((y - AXIS) / this.row);
        if (place === 0 && rank >= 0 && rank < this.plan.rankCount) {
            this.shared.rank = rank;
            const action = this.actionAt(rank, this.shared.tick);
            if (action >= 0) {
                const isFollowed = this.plan.microbatch[action] === this.shared.follow;
                this.chooseStage(this.plan.stage[action]);
                this.shared.follow = isFollowed ? -1 : this.plan.microbatch[action];
            }
        }
        this.refresh();
    },

    onKey(event) {
        const shared = this.shared;
        const far = event.shiftKey ? 10 : 1;
        const keys = {
            ArrowLeft: () => this.moveTo(shared.tick - far), ArrowRight: () => this.moveTo(shared.tick + far),
            ArrowUp: () => this.chooseRank(shared.rank - far), ArrowDown: () => this.chooseRank(shared.rank + far),
            Home: () => this.moveTo(0), End: () => this.moveTo(this.tickCount - 1),
            Enter: () => this.followHere(), Escape: () => this.follow(-1),
        };
        if (!(event.key in keys)) {
            return false;
        }
        keys[event.key]();
        const action = this.actionAt(shared.rank, shared.tick);
        byId("say").textContent = `tick ${shared.tick}, rank ${shared.rank}: ${action >= 0 ? this.plan.label(action) : "empty"}`;
        return true;
    },

    tip(place, time, y) {
        const plan = this.plan;
        const rank = this.firstRow + Math.floor((y - AXIS) / this.row);
        if (place !== 0 || time < 0 || time >= plan.length || rank < 0 || rank >= plan.rankCount || y < AXIS) {
            return "";
        }
        const action = this.actionAt(rank, Math.floor(time));
        if (action < 0) {
            return `rank ${rank}, tick ${Math.floor(time)}: empty`;
        }
        const handoff = plan.handoff(action);
        const input = handoff ? `\nafter ${plan.label(handoff.producer)}: ${handoff.class}` : "";
        return `${plan.label(action)} on rank ${rank}\nticks ${this.span(action)}${input}\n${plan.held[action]} copies held after it`;
    },

    span(action) {
        const {start, end} = this.plan;
        const isWhole = Number.isInteger(start[action]) && Number.isInteger(end[action]);
        if (!isWhole) {
            return `${ticks(start[action])} to ${ticks(end[action])}`;
        }
        return end[action] - start[action] === 1 ? String(start[action]) : `${start[action]}\u2013${end[action] - 1}`;
    },

    badge(action) {
        if (action < 0) {
            return make("span", {class: "badge", style: "background:var(--empty);color:var(--muted)"}, "empty");
        }
        const name = palette.of(this.plan, action);
        return make("span", {class: "badge", style: `background:var(--${name});color:var(--${name}-ink)`}, this.plan.label(action));
    },

    tickTable() {
        const {plan, shared} = this;
        const words = {F: "forward", B: "backward", I: "input gradient", W: "weight gradient"};
        const rows = [];
        for (let rank = 0; rank < plan.rankCount; rank++) {
            const action = this.actionAt(rank, shared.tick);
            rows.push([`rank ${rank}`, this.badge(action), action >= 0 ? words[plan.kind[action]] : "",
                number(plan.heldAfter(rank, shared.tick)), number(plan.facts.peak_copies[rank])]);
        }
        const body = table("", ["Rank", "Runs", "", "#Held", "#Peak"], rows, (rank) => rank === shared.rank);
        body.id = "at-tick";
        return make("div", null, make("h2", null, `At tick ${number(shared.tick)}`), scrolled(body, "What each rank runs"));
    },

    poolRank() {
        return this.plan.facts.stage_rank[this.shared.stage];
    },

    poolTools() {
        this.stagePick = make("select", {id: "stage", onchange: () => {
            this.chooseStage(Number(this.stagePick.value));
            this.refresh();
        }}, Array.from({length: this.plan.stageCount}, (_, stage) => make("option", {value: stage},
            `stage ${stage} (rank ${this.plan.facts.stage_rank[stage]})`)));
        return make("div", null, make("h2", null, "Payload slots"), make("div", {class: "tools"}, make("label", null, "Of", this.stagePick)));
    },

    poolList() {
        const {plan, shared} = this;
        const owners = new Map();
        for (const lease of this.pool) {
            if (plan.start[lease.forward] < shared.tick + 1 - NEAR && plan.end[lease.release] > shared.tick + 1 + NEAR) {
                owners.set(lease.slot, lease.microbatch);
            }
        }
        const slots = Array.from({length: this.slotCount}, (_, slot) => {
            const owner = owners.get(slot);
            const isFollowed = owner !== undefined && owner === shared.follow;
            return make("li", {class: (owner === undefined ? "" : "leased") + (isFollowed ? " followed" : "")},
                `slot ${slot}`, make("b", null, owner === undefined ? "free" : `microbatch ${owner}`));
        });
        const retention = plan.facts.retention[shared.stage];
        return make("div", null,
            make("p", {class: "note", id: "pool"}, `Stage ${shared.stage} needs ${retention} ${retention === 1 ? "slot" : "slots"}: the most of its `
                + `forwards that wait for their backward at once. After tick ${shared.tick}, ${owners.size} ${owners.size === 1 ? "is" : "are"} leased.`),
            scrolled(make("ul", {class: "slots"}, slots), "Slots"),
            dataTable("payload slots", ["#slot", "#microbatch", "#leased at tick", "#released at tick"], this.pool.length,
                (i) => [this.pool[i].slot, this.pool[i].microbatch, plan.start[this.pool[i].forward], plan.end[this.pool[i].release]]));
    },

    followTools() {
        this.followInput = make("input", {type: "number", id: "follow", min: 0, max: this.plan.microbatchCount - 1, placeholder: "none",
            oninput: () => this.follow(this.followInput.value === "" ? -1 : Number(this.followInput.value))});
        return make("div", null, make("h2", null, "Follow one microbatch"), make("div", {class: "tools"},
            make("label", null, "Microbatch", this.followInput),
            make("button", {type: "button", onclick: () => this.follow(-1)}, "None")));
    },

    followTable() {
        const {plan, shared} = this;
        if (shared.follow < 0) {
            return make("p", {class: "note", id: "followed"}, "Choose a number, or a cell of the grid (click, or the arrow keys and Enter).");
        }
        const rows = [];
        for (let stage = 0; stage < plan.stageCount; stage++) {
            const forward = plan.find(0, stage, shared.follow), backward = plan.find(1, stage, shared.follow);
            const release = plan.release(stage, shared.follow);
            if (forward >= 0) {
                rows.push([`${stage}`, number(plan.rankOf[forward]), this.cell(forward), backward >= 0 ? this.cell(backward) : "",
                    ticks(plan.end[release] - plan.start[forward])]);
            }
        }
        const body = table(`Microbatch ${shared.follow} through ${counted(rows.length, "stage")}`,
            ["Stage", "#Rank", "Forward", "Backward", "#Held for, ticks"], rows);
        body.id = "followed";
        return scrolled(body, "The followed microbatch");
    },

    cell(action) {
        const way = this.plan.handoffClass(action);
        return make("span", null, this.badge(action), ` ${this.span(action)} `, way ? make("span", {class: `class-${way}`}, way) : null);
    },

    windowFrom() {
        return this.window ? this.window.from : this.shared.tick;
    },

    windowTo() {
        return this.window ? this.window.to : Math.min(this.shared.tick + 5, this.tickCount - 1);
    },

    handoffTools() {
        const change = () => {
            this.window = {from: Number(this.fromInput.value), to: Number(this.toInput.value)};
            this.handoffPart.replaceChildren(this.handoffTable());
            this.drawWindow();
        };
        const input = (id) => make("input", {type: "number", id, min: 0, max: this.tickCount - 1, oninput: change});
        this.fromInput = input("from");
        this.toInput = input("to");
        return make("div", null, make("h2", null, "Handoffs"), make("div", {class: "tools"},
            make("label", null, "Consumed in ticks", this.fromInput), make("label", null, "to", this.toInput)));
    },

    /* The handoffs between ranks that are consumed in the window, by tick. */
    handoffs() {
        const plan = this.plan, found = [];
        for (let rank = 0; rank < plan.rankCount; rank++) {
            for (let action = Math.max(plan.begin[rank], plan.last(plan.start, rank, this.windowFrom() - 2 * NEAR));
                action < plan.begin[rank + 1] && plan.start[action] <= this.windowTo() + 1 - NEAR; action++) {
                const handoff = plan.start[action] >= this.windowFrom() - NEAR ? plan.handoff(action) : null;
                if (handoff && handoff.class !== "local") {
                    found.push(handoff);
                }
            }
        }
        return found.sort((left, right) => plan.start[left.consumer] - plan.start[right.consumer]);
    },

    handoffTable() {
        const plan = this.plan, found = this.handoffs();
        const rows = found.slice(0, HANDOFF_MOST).map(({producer, consumer, between, class: way}) => [
            `${plan.label(producer)} \u2192 ${plan.label(consumer)}`, `${plan.rankOf[producer]} \u2192 ${plan.rankOf[consumer]}`,
            make("span", {class: `class-${way}`}, way),
            between.length === 0 ? "nothing" : between.slice(0, 4).map((action) => plan.label(action)).join(", ")
                + (between.length > 4 ? ` and ${between.length - 4} more` : "")]);
        const body = table(plan.isCosted ? "Exposed: the receiver waits for it, by the costs of the configuration"
            : "Hidden: the receiver has independent work between the producer's end and the consumer",
            ["Handoff", "Ranks", "Class", "Runs meanwhile"], rows);
        body.id = "handoffs";
        return make("div", null, scrolled(body, "Handoffs"),
            make("p", {class: "note"}, `${number(found.length)} in this window` + (found.length > HANDOFF_MOST ? `; the first ${HANDOFF_MOST} are shown` : "")));
    },

    gridData() {
        const plan = this.plan;
        return dataTable("the plan", ["#rank", "action", "#first tick", "#end", "#copies held after", "handoff"], plan.count, (action) => [
            String(plan.rankOf[action]), plan.label(action), ticks(plan.start[action]), ticks(plan.end[action]),
            String(plan.held[action]), plan.handoffClass(action)]);
    },
});
