#!/usr/bin/env bash
# Installs the system packages that some tests use. Never fails: tests that need a missing package are skipped with a summary line.
set -u

packages=()
command -v bwrap >/dev/null 2>&1 || [ "$(uname -s)" != Linux ] || packages+=(bubblewrap)
has_postgres() { command -v postgres >/dev/null 2>&1 || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }
has_browser() { command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1; }
has_browser || [ "$(uname -s)" != Linux ] || packages+=(chromium)
has_postgres || packages+=("$(command -v apt-get >/dev/null 2>&1 && echo postgresql || echo postgresql@17)")
[ ${#packages[@]} -eq 0 ] && exit 0

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

if command -v apt-get >/dev/null 2>&1 && as_root true 2>/dev/null; then
  echo "== installing system packages: ${packages[*]}"
  as_root apt-get update -qq >/dev/null 2>&1
  missing=()
  for package in "${packages[@]}"; do
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  packages=("${missing[@]}")
elif command -v brew >/dev/null 2>&1; then
  brew install --quiet "${packages[@]}" && exit 0
fi
[ ${#packages[@]} -eq 0 ] && exit 0
echo "== system packages not installed: ${packages[*]} (tests that need them will be skipped; to run them: apt-get install ${packages[*]})"
