{{/* A table over another, as YAML; sprig's own merge would not let false or 0 win. Takes under, over. */}}
{{- define "strata-model.merge" -}}
{{- $made := deepCopy .under -}}
{{- range $key, $value := .over -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $made $key -}}
{{- else if kindIs "map" $value -}}
{{- $under := get $made $key | kindIs "map" | ternary (get $made $key) dict -}}
{{- $_ := set $made $key (include "strata-model.merge" (dict "under" $under "over" $value) | fromYaml) -}}
{{- else -}}
{{- $_ := set $made $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $made -}}
{{- end -}}
