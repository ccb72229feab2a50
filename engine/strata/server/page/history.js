// What the server's counters said in the last minute, for rates.
const SECONDS = 60;

export class History {
  samples = []; // {at: seconds, status}, the oldest first

  add(at, status) {
    const before = this.samples.at(-1);
    // Counters that go back are those of a server that was started anew.
    if (before && status.traffic.generation_tokens < before.status.traffic.generation_tokens) this.samples = [];
    if (this.samples.length && !status.experts !== !before.status.experts) this.samples = [];
    this.samples.push({ at, status });
    while (this.samples[1]?.at <= at - SECONDS) this.samples.shift(); // one that is older begins the minute
  }

  // What was added to `counter(status)` in the last so many seconds, and in how many; null of a single sample.
  since(seconds, counter) {
    const last = this.samples.at(-1);
    if (this.samples.length < 2) return null;
    const first = this.samples.findLast((sample) => sample.at <= last.at - seconds) ?? this.samples[0];
    return { added: counter(last.status) - counter(first.status), seconds: last.at - first.at };
  }

  rate(seconds, counter) {
    const change = this.since(seconds, counter);
    return change && change.added / change.seconds;
  }

  // The rate between each sample and the next, with the seconds before now at which it was.
  rates(counter) {
    const now = this.samples.at(-1)?.at;
    return this.samples.slice(1).map((sample, index) => {
      const before = this.samples[index];
      const added = counter(sample.status) - counter(before.status);
      return { ago: now - sample.at, rate: added / (sample.at - before.at) };
    });
  }
}

export { SECONDS as MINUTE };
