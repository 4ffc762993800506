#compdef tessera
# Zsh completion for tessera, written by `tessera completion zsh`.
_tessera() {
  local -a offers files
  local line tab=$'\t'
  for line in "${(@f)$($words[1] completion offer "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      @files) files=(_files) ;;
      @folders) files=(_files -/) ;;
      ?*) offers+=("${${line//:/\\:}/$tab/:}") ;;
    esac
  done
  [[ $PREFIX != --*=* ]] || compset -P '*='
  (( ! $#offers )) || _describe -t values value offers
  (( ! $#files )) || $files
}

if [[ $funcstack[1] == _tessera ]]; then
  _tessera "$@"
else
  compdef _tessera tessera
fi
