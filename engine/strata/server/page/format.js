// Numbers for people.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function count(number) {
  return (Math.abs(number) < 100 ? three : whole).format(number);
}

export function percent(share) {
  return `${whole.format(share * 100)}\u202f%`;
}

export function seconds(time) {
  return time < 1 ? `${whole.format(time * 1000)} ms` : `${three.format(time)} s`;
}

export function bytes(number) {
  let unit = 0;
  for (; number >= 1000 && unit < UNITS.length - 1; unit++) number /= 1024;
  return `${three.format(number)} ${UNITS[unit]}`;
}
