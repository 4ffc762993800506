# Bash completion for tessera, written by `tessera completion bash`.
_tessera() {
  local cur=${COMP_WORDS[COMP_CWORD]} line names
  [[ $cur != = ]] || cur=
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      @files) compopt -o filenames 2>/dev/null; mapfile -t names < <(compgen -f -- "$cur") ;;
      @folders) compopt -o filenames 2>/dev/null; mapfile -t names < <(compgen -d -- "$cur") ;;
      *) names=("${line%%$'\t'*}") ;;
    esac
    COMPREPLY+=("${names[@]}")
  done < <("${COMP_WORDS[0]}" completion offer "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _tessera tessera
