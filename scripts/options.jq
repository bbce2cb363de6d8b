# The options of a settings file, from its JSON Schema, as rows of a Markdown table.
def values:
    if has("anyOf") then [.anyOf[] | values] | join(", or ")
    elif has("enum") then .enum | map("`\(.)`") | join(", ")
    elif .type == "integer" then
        if .maximum > 1e12 then "from \(.minimum)" else "\(.minimum) to \(.maximum)" end
    elif .type == "boolean" then "`true`, `false`"
    elif .type == "number" then
        (if has("exclusiveMinimum") then "above \(.exclusiveMinimum)" else "\(.minimum)" end)
        + " to \(.maximum)"
    elif .type == "array" then
        if .items.type == "integer" then "list of \(.items.minimum) to \(.items.maximum)"
        elif .items | has("enum") then "list of " + (.items.enum | map("`\(.)`") | join(", "))
        elif .items | has("examples") then "list as `[\"\(.items.examples[0])\"]`"
        else "list of texts" end
    elif has("examples") then "as `\(.examples[0])`"
    else "text" end;

def rows($path; $required):
    if .type == "array" and .items.type == "object" then .items | rows($path; false)
    elif .type == "object" and (.additionalProperties | type) == "object" then
        .additionalProperties | rows($path + ".NAME"; false)
    elif .type == "object" then
        .required as $names | .properties | to_entries[] | .key as $key
        | .value | rows((if $path == "" then "" else $path + "." end) + $key; $names | index($key))
    else
        "| `\($path)` | \(values) | "
        + (if $required then "required" elif has("default") then "`\(.default)`" else "" end)
        + " | \(.description) |"
    end;

rows(""; false)
