#!/usr/bin/env bash
# Makes .venv with everything the package needs (`make setup`). Does again only what has changed since the last time.
#   PYTHON  interpreter to make .venv with
#   TORCH   what to ask pip for: a requirement, with options if need be
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=${PYTHON:-python3}
TORCH=${TORCH:-torch==2.13.0}
EXTRAS='[test,demo,simulation]'
python=.venv/bin/python
log=.venv/setup.log

fail() {
  echo "make setup: $*" >&2
  exit 1
}

# Names the first thing that is missing on this machine, and how to get it.
check_machine() {
  command -v "$PYTHON" >/dev/null || fail "no $PYTHON here; install Python 3.10 or newer (apt install python3 python3-venv python3-dev)" \
    'or name one: make setup PYTHON=/path/to/python3.12'
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$PYTHON is Python $("$PYTHON" -c 'import platform; print(platform.python_version())')," \
      'but 3.10 or newer is needed; name one: make setup PYTHON=/path/to/python3.12'
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || fail 'Python module venv is missing; apt install python3-venv'
  [ -e "$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
    fail "the headers of $PYTHON are missing; apt install python3-dev"
  { command -v "${CC:-cc}" && command -v "${CXX:-c++}"; } >/dev/null ||
    fail 'a C and C++ compiler is missing; apt install build-essential'
}

# step TEXT COMMAND...: runs the command quietly, its output goes to the log. On a terminal the current line of it shows.
step() {
  local text=$1 start=$SECONDS
  shift
  echo "  $text ..."
  if ! "$@" 2>&1 | tee -a "$log" | show_last_line; then
    tail -n 25 "$log" >&2
    fail "failed: $text; the whole output is in $log"
  fi
  [ $((SECONDS - start)) -lt 5 ] || echo "    done in $((SECONDS - start)) s"
}

show_last_line() {
  if [ ! -t 1 ]; then
    cat >/dev/null
    return
  fi
  local line width
  width=$(($(tput cols 2>/dev/null || echo 80) - 5))
  while IFS= read -r line; do
    printf '\r\033[K    %.*s' "$width" "$line"
  done
  printf '\r\033[K'
}

fingerprint() {
  sha256sum "$@" | sha256sum | cut -c 1-64
}

build_requirements() {
  "$python" - <<'END'
try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib
with open('pyproject.toml', 'rb') as file:
    print(*tomllib.load(file)['build-system']['requires'], sep='\n')
END
}

changed() {  # changed NAME VALUE: true if the stamp of that name does not hold the value
  [ "$(cat ".venv/stamp-$1" 2>/dev/null)" != "$2" ]
}

exec 9<.
flock 9  # another make setup in this folder finishes first

environment="$PWD $TORCH"
package="$EXTRAS $(fingerprint pyproject.toml package.xml)"
interfaces="$(fingerprint pyproject.toml package.xml setup.py CMakeLists.txt msg/*.msg srv/*.srv src/*.c)"
[ -e oxygen_ros/msg/__init__.py ] || interfaces+=' missing'
if ! changed environment "$environment" && ! changed package "$package" && ! changed interfaces "$interfaces"; then
  exit 0
fi

check_machine
unset PYTHONPATH PYTHONHOME AMENT_PREFIX_PATH CMAKE_PREFIX_PATH LD_LIBRARY_PATH
echo 'Setting up .venv (the first time takes some minutes)'
if changed environment "$environment"; then
  rm -rf .venv
  mkdir .venv
  step 'Python environment' "$PYTHON" -m venv .venv
  # shellcheck disable=SC2086  # TORCH may hold options
  step "torch ($TORCH)" "$python" -m pip install $TORCH
  echo "$environment" >.venv/stamp-environment
fi
rm -rf build  # pip keeps old files in it
export PATH="$PWD/.venv/bin:$PATH"  # cmake and ninja
# The build requirements lie in .venv, not in an environment that pip makes for each build: so a later build is quick and
# needs no network.
if changed package "$package"; then
  build_requirements >.venv/build-requirements.txt
  step 'ROS 2 and build tools from PyPI' "$python" -m pip install -r .venv/build-requirements.txt
  step 'interfaces, package, libraries' "$python" -m pip install --no-build-isolation -e ".$EXTRAS"
else
  step 'interfaces, package' "$python" -m pip install --no-build-isolation --no-deps -e .
fi
"$python" -c 'import oxygen_ros.msg, oxygen_ros.srv, rclpy' ||
  fail "the environment does not work; see $log, or start again with make clean"
echo "$package" >.venv/stamp-package
echo "${interfaces% missing}" >.venv/stamp-interfaces
