#!/usr/bin/env bash
# SPDX-License-Identifier: AGPL-3.0-only
# The two steps of action.yml: `install` makes an environment of its own, `run` runs glm5inspect once and says how it went.
# What the caller gives is in INPUT_*. Bash 3.2, which macOS has, is enough.
set -euo pipefail

install() {
  local environment=$RUNNER_TEMP/glm5inspect
  # -I: nothing in the workspace, which may be that of a stranger, is imported instead of a module of Python.
  "$INPUT_PYTHON" -I -m venv --clear "$environment"
  "$environment/bin/python" -I -m pip install --quiet --disable-pip-version-check -- \
    "${INPUT_PACKAGE:-$GITHUB_ACTION_PATH/../../..}"
  printf 'program=%s\n' "$environment/bin/glm5inspect" >>"$GITHUB_OUTPUT"
}

# Append the lines of a text to `arguments`, without the empty ones.
append_lines() {
  local line
  while IFS= read -r line; do
    [[ -z $line ]] || arguments+=("$line")
  done <<<"$1"
}

run() {
  local arguments=("$INPUT_COMMAND" --format=github) report code=0 verdict
  report=$(mktemp "$RUNNER_TEMP/report.XXXXXX")
  arguments+=("--report=markdown=$report")
  [[ -z $INPUT_JUNIT ]] || arguments+=("--report=junit=$INPUT_JUNIT")
  [[ -z $INPUT_SARIF ]] || arguments+=("--report=sarif=$INPUT_SARIF")
  [[ -z $INPUT_JSON ]] || arguments+=("--report=json=$INPUT_JSON")
  [[ -z $INPUT_HTML ]] || arguments+=("--report=html=$INPUT_HTML")
  [[ -z $INPUT_ACCEPT ]] || arguments+=("--accept=$INPUT_ACCEPT")
  append_lines "$INPUT_ARGS"
  arguments+=(--) # from here on, what begins with - is no option
  append_lines "$INPUT_SOURCE"
  [[ -z $INPUT_TOKEN ]] || export HF_TOKEN="$INPUT_TOKEN"

  "$PROGRAM" "${arguments[@]}" || code=$?

  if [[ ! -s $report && $code -le 1 ]]; then # asked for --help, say: nothing was looked at
    echo "::error title=glm5inspect::no report was written, so nothing is known"
    code=3
  fi
  case $code in
    0) verdict=ok ;;
    1) verdict=failed ;;
    *) verdict=incomplete ;;
  esac
  # Appended: a report would replace what others have written there.
  [[ $INPUT_SUMMARY == false ]] || cat "$report" >>"$GITHUB_STEP_SUMMARY"
  rm "$report"
  printf 'exit-code=%s\nverdict=%s\n' "$code" "$verdict" >>"$GITHUB_OUTPUT"
  return "$code"
}

"$1"
