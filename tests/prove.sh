#!/usr/bin/env bash
# The experiments of docs/RELIABILITY.md: `just prove`, or some of them by name. Fails on one miss.
# They are as large here as the promises say; in the check the same tests are smaller.
set -euo pipefail
cd "$(dirname "$0")/.."

# experiment | package | what of its tests
experiments="
crash      platform-tests  crash:: crash_access:: crash_all:: crash_documents:: company:: process::a_stopped tools::after_a_crash
crash      platform-tests  triggers::each_event webhooks::each_event
race       platform-tests  idempotency:: tenants::racing tiers:: queue:: thread_states::
streams    platform-tests  stream::
matrix     platform-tests  matrix:: access:: credentials:: oauth:: owners:: projects::
matrix     platform-auth
egress     platform-tests  doors:: files:: tools::calls_that_cannot
egress     platform-egress
hostile    platform-child
hostile    platform-tests  attackers:: hostile:: hostile_files:: hostile_reads:: connections:: guessing:: wire:: http:: malformed:: limits:: tool_servers::
providers  platform-tests  faults:: messages::provider models:: structured::
database   platform-tests  database:: operations::
fleet      platform-tests  fleet:: process::sigterm
turns      platform-tests  agents:: chats:: messages:: process:: sub_agents:: tenants:: threads:: tools::
knowledge  platform-tests  documents:: document_access:: document_files:: uploads:: vectors:: skills:: memory:: recall:: speech::
apps       platform-tests  integrations:: tenant_integrations:: triggers:: webhooks::
mcp        platform-tests  mcp_gateway:: mcp_protocol:: tenant_mcp::
sandbox    platform-sandbox
sandbox    platform-environments
sandbox    platform-tests  environments:: sandboxes::
"
export PROVE=whole
asked=("$@")
proved=0
while read -r name package tests; do
  [ -n "$name" ] || continue
  [ ${#asked[@]} = 0 ] || [[ " ${asked[*]} " == *" $name "* ]] || continue
  printf '\n== %s (%s)\n' "$name" "$package"
  # shellcheck disable=SC2086 # each word is a filter
  said=$(cargo test --quiet --package "$package" --tests -- $tests 2>&1) || { printf '%s\n' "$said"; exit 1; }
  # What this machine does not let be tried is not proved.
  if grep 'not tried' <<<"$said"; then
    exit 1
  fi
  grep 'attempts of' <<<"$said" || true
  count=$(grep -o '[0-9]* passed' <<<"$said" | awk '{ sum += $1 } END { print sum + 0 }')
  [ "$count" -gt 0 ] || { echo "There is no such test: $tests"; exit 1; }
  echo "$count passed, 0 failed"
  proved=$((proved + count))
done <<<"$experiments"
[ "$proved" -gt 0 ] || { echo "There is no experiment ${asked[*]}."; exit 1; }
printf '\n%s experiments hold.\n' "$proved"
