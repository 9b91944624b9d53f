#!/usr/bin/env bash
# The worker's side of launch/tpu_vm.py: installs what the job needs, runs it
# apart from the ssh connection, and keeps its log and exit code.
#
#   bootstrap.sh install                           make or complete the environment
#   bootstrap.sh start [--setup COMMAND] -- ARGS   start bigtransfer.main ARGS
#   bootstrap.sh status | stop | logs N [follow]
#   bootstrap.sh doctor -- ARGS
#
# In ~/bigtransfer: code (the synced tree), venv, job/{log,exit,pid,arguments}.
# BIGTRANSFER_PYTHON=/path/to/python uses that one and installs nothing.
# It kills nothing: `stop` sends SIGTERM to the job that it has started.
set -euo pipefail

# Worker images have Python 3.10, the job needs 3.11; uv fetches one then.
UV=0.13.8
PYTHON_VERSION=3.12
FAILED=1 WRONG_USE=2 BUSY=16 STOPPED=75

home=$HOME/bigtransfer
job=$home/job
# The tree itself, not the link: a later sync must not change it under a job.
tree=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

fail() {
  echo "error: $2" >&2
  exit "$1"
}

make_environment() {
  local candidate
  for candidate in python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      "$candidate" -m venv --clear "$home/venv"
      return
    fi
  done
  python3 -m pip install --quiet --user "uv==$UV"
  python3 -m uv venv --quiet --clear --seed --python "$PYTHON_VERSION" \
    "$home/venv"
}

# Sets `python`. The second of two at once waits for the first, and what is
# installed already takes no time. The project itself runs from its tree.
install() {
  if [[ -n ${BIGTRANSFER_PYTHON:-} ]]; then
    python=$BIGTRANSFER_PYTHON
    return
  fi
  python=$home/venv/bin/python
  local wanted mark=$home/venv/installed
  wanted=$(sha256sum <"$tree/launch/requirements-tpu.txt")
  exec 8>>"$home/venv.lock"
  flock 8
  if [[ ! -f $mark || $(cat "$mark") != "$wanted" ]]; then
    echo "installing launch/requirements-tpu.txt in $home/venv"
    make_environment
    "$python" -m pip install --quiet --disable-pip-version-check \
      -r "$tree/launch/requirements-tpu.txt"
    echo "$wanted" >"$mark.new"
    mv "$mark.new" "$mark"
  fi
  exec 8>&-
}

project() {
  cd "$tree"
  PYTHONPATH=$tree${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 \
    exec "$python" -m "$@"
}

# Holds the lock in fd 9, which the job inherits: it is free when both are gone.
lock() {
  mkdir -p "$job"
  exec 9>>"$job/lock"
}

busy() {
  [[ $(cat "$job/arguments") == "$1" ]] ||
    fail $BUSY "another job is running: $(cat "$job/arguments")"
  echo "the job is running already"
}

start() {
  local setup=
  if [[ ${1:-} == --setup ]]; then
    setup=$2
    shift 2
  fi
  [[ ${1:-} == -- ]] || fail $WRONG_USE "start [--setup COMMAND] -- ARGUMENTS"
  shift
  local arguments
  arguments=$(printf '%q ' "$setup" "$@")
  lock
  until flock --nonblock 9; do
    # A job holds it for itself, who asks for the status shares it, in no time.
    flock --shared --nonblock 9 || { busy "$arguments"; return; }
    flock --unlock 9
    sleep 0.1
  done
  rm -f "$job/exit" "$job/pid" "$job/stop"
  echo "$arguments" >"$job/arguments"
  setsid bash "$tree/launch/bootstrap.sh" job "$setup" "$@" \
    >>"$job/log" 2>&1 </dev/null &
  echo "the job is started"
}

finish() {
  echo "--- $(date -u +%FT%TZ) exit code $1"
  echo "$1" >"$job/exit.new"
  mv "$job/exit.new" "$job/exit"
  exit 0
}

# `stop` and a job that is just starting both come here; whoever removes the
# file sends the signal, as a second one would stop the job before it has saved.
terminate() {
  if [[ -f $job/pid ]] && rm "$job/stop" 2>/dev/null; then
    kill -TERM "$(cat "$job/pid")" || true # it may just have ended
  fi
}

job() {
  local setup=$1 code pid signaled=
  shift
  # A machine that shuts down asks each process to stop, this one too; it stays
  # to note the exit code. (A signal ignored would be ignored by the job.)
  trap signaled=yes TERM INT HUP
  echo "--- $(date -u +%FT%TZ) $(hostname) bigtransfer.main $(printf '%q ' "$@")"
  if [[ -n $setup ]]; then
    bash -c "$setup" || { echo "error: --setup failed: $setup"; finish $FAILED; }
  fi
  bash "$tree/launch/bootstrap.sh" install || {
    echo "error: the environment could not be installed"
    finish $FAILED
  }
  install
  ! rm "$job/stop" 2>/dev/null || finish $STOPPED
  (project bigtransfer.main "$@") &
  pid=$!
  echo "$pid" >"$job/pid.new"
  mv "$job/pid.new" "$job/pid"
  terminate
  while true; do
    code=0
    wait "$pid" || code=$?
    # A signal ends the wait with a code that is not the job's.
    [[ -n $signaled ]] || break
    signaled=
  done
  finish "$code"
}

status() {
  local state=none code=-
  lock
  # Shared, so that two who ask do not take each other for a job.
  if ! flock --shared --nonblock 9; then
    state=running
  elif [[ -f $job/exit ]]; then
    state=exited code=$(cat "$job/exit")
  elif [[ -f $job/arguments ]]; then
    state=lost
  fi
  echo "bigtransfer-status host=$(hostname) state=$state code=$code"
}

stop() {
  lock
  if flock --shared --nonblock 9; then
    echo "no job is running"
    return
  fi
  touch "$job/stop"
  terminate
  echo "the job is asked to save and stop"
}

logs() {
  [[ -f $job/log ]] || fail $FAILED "no log on $(hostname): no job was started"
  local follow=()
  [[ ${2:-} != follow ]] || follow=(-F)
  tail -n "$1" "${follow[@]}" "$job/log" | sed -u "s/^/[$(hostname)] /"
}

mkdir -p "$home"
case ${1:-} in
  install) install ;;
  start | job | status | stop | logs) "$@" ;;
  doctor)
    shift 2
    install
    project launch.doctor "$@"
    ;;
  *) fail $WRONG_USE "what to do? See $tree/launch/bootstrap.sh" ;;
esac
