# zsh -f zsh_offers.zsh FOLDER LINE: prints what Tab offers after LINE in an interactive zsh that finds completion
# functions in FOLDER, a word a line.
# compadd is replaced by a function that notes its matches.
zmodload zsh/zpty zsh/zselect
offers=$(mktemp)
cat >$offers.setup <<SETUP
PROMPT= RPROMPT=
fpath=(${(q)1} \$fpath)
autoload -Uz compinit; compinit -D -u
compadd() {
  local -a found
  [[ \${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]] || { builtin compadd -A found "\$@"; print -rl -- \$found >>$offers }
  builtin compadd "\$@"
}
offer() { zle complete-word; print -r -- END >>$offers }
zle -N offer
bindkey '^I' offer
SETUP
zpty shell zsh -f -i
zpty -w shell "source $offers.setup; rm $offers.setup"
while [[ -e $offers.setup ]]; do zselect -t 5; done
zpty -w -n shell "$2"$'\t'
for (( i = 0; i < 400; ++i )); do
  [[ "$(tail -n 1 $offers)" == END ]] && break
  zselect -t 5
done
zpty -d shell
sed '/^END$/d; /^$/d' $offers | sort -u
rm $offers
