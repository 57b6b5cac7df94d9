# The settings and functions that the scripts of the checks share. It is sourced, from the repository's root.

# clippy compiles our packages, so what is built is linted at once and nothing is checked without being built. Its lints are
# errors. Each command below the same settings uses the same output; with others, cargo would compile our packages again.
export RUSTC_WORKSPACE_WRAPPER=clippy-driver
export CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__

# A clone is built once. Incremental data would speed up the next build and takes half of the disk space; line tables would
# tell a debugger where it is and make each of the many test programs larger. A panic names its line without them.
export CARGO_INCREMENTAL=0
export CARGO_PROFILE_DEV_DEBUG=0

# The packages that are tested, with one set of features: selecting fewer would compile dependencies twice.
TESTED="--workspace --exclude milvaion-xtask --exclude milvaion-bench"

# The files from which `cargo xtask budget` reports. The tests append to `counts`, if the folder exists.
BUDGET=target/budget

# Prints the processor time that the machine has spent so far, in hundredths of a second, without idle time.
busy() { awk '/^cpu / { printf "%.0f", $2 + $3 + $4 + $7 + $8; exit }' /proc/stat; }

# Runs a command as a step with a name, and records its time: `step NAME COMMAND…`.
step() {
    step_name=$1
    shift
    step_from=$(date +%s.%N) step_busy=$(busy)
    "$@"
    [ ! -d "$BUDGET" ] || awk -v name="$step_name" -v from="$step_from" -v to="$(date +%s.%N)" -v before="$step_busy" -v after="$(busy)" \
        'BEGIN { printf "%s\t%.1f\t%.1f\n", name, to - from, (after - before) / 100 }' >>"$BUDGET/steps.tsv"
}
