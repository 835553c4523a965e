# Completes the options of moeccl's tools and their commands, as their own --help lists them, and else the names of files.
_moeccl() {
  local word=${COMP_WORDS[COMP_CWORD]} tool=("${COMP_WORDS[0]}") options
  COMPREPLY=()
  if [[ $word == -* ]]; then
    case ${COMP_WORDS[1]} in layers | route | predict) tool+=("${COMP_WORDS[1]}") ;; esac
    options=$("${tool[@]}" --help 2>/dev/null | grep -oE -- '(^|[ ,])--?[a-z][a-z-]*' | tr -d ' ,')
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  fi
}
complete -o default -F _moeccl moeccl-fit moeccl-lab moeccl-mpi moeccl-perf moeccl-plan
