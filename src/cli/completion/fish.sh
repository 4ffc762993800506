# Fish completion for tessera, written by `tessera completion fish`.
function __tessera_offers
    set -l token "$(commandline -ct)"
    set -l prefix (string match -r '^--[^=]*=' -- $token)
    set -l value (string replace -r '^--[^=]*=' '' -- $token)
    for line in (tessera completion offer (commandline -opc)[2..-1] $token 2>/dev/null)
        switch $line
            case @files
                string replace -r '^' -- "$prefix" (__fish_complete_path "$value")
            case @folders
                string replace -r '^' -- "$prefix" (__fish_complete_directories "$value")
            case '*'
                echo "$prefix$line"
        end
    end
end
complete -c tessera -f -a '(__tessera_offers)'
