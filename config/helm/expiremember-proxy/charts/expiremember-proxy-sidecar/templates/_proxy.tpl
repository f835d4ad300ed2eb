{{- /* A setting's value as an environment variable has it: numbers of values.yaml are floats, lists are joined. */}}
{{- define "expiremember-proxy.value" -}}
{{- if kindIs "slice" . }}{{ join "," . }}
{{- else if kindIs "float64" . }}{{ if eq (floor .) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else }}{{ toString . }}{{ end }}
{{- end }}

{{- /* The port of the first TCP address in a setting. */}}
{{- define "expiremember-proxy.port" -}}
{{- $addresses := kindIs "slice" . | ternary . (splitList "," (toString .)) }}
{{- range $addresses }}{{ if not (hasPrefix "unix:" (trim .)) }}{{ regexFind "[0-9]+$" (trim .) }},{{ end }}{{ end }}
{{- end }}

{{- /* The container, without what differs between a sidecar and a pod of its own. The argument: its values. */}}
{{- define "expiremember-proxy.container" -}}
name: expiremember-proxy
image: "{{ .image.repository }}:{{ .image.tag }}"
imagePullPolicy: {{ .image.pullPolicy }}
env:
  {{- range $name, $value := .settings }}
  {{- if not (kindIs "invalid" $value) }}
  - {name: EXPIREMEMBER_{{ upper $name }}, value: {{ include "expiremember-proxy.value" $value | quote }}}
  {{- end }}
  {{- end }}
  {{- if .passwordSecret.name }}
  - {name: EXPIREMEMBER_UPSTREAM_PASSWORD_FILE, value: /etc/expiremember-proxy/password}
  {{- end }}
ports:
  - name: redis
    containerPort: {{ include "expiremember-proxy.port" .settings.listen | splitList "," | first }}
  - name: admin
    containerPort: {{ include "expiremember-proxy.port" .settings.admin | splitList "," | first }}
startupProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 1
  failureThreshold: 120
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 5
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
resources: {{- toYaml .resources | nindent 2 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- if or .passwordSecret.name .extraVolumeMounts }}
volumeMounts:
  {{- if .passwordSecret.name }}
  # The folder, not the single file: so a changed password arrives. The proxy reads the file at each login.
  - {name: expiremember-proxy-password, mountPath: /etc/expiremember-proxy, readOnly: true}
  {{- end }}
  {{- with .extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end }}

{{- define "expiremember-proxy.volumes" -}}
{{- if .passwordSecret.name }}
- name: expiremember-proxy-password
  secret:
    secretName: {{ .passwordSecret.name }}
    items: [{key: {{ .passwordSecret.key }}, path: password}]
{{- end }}
{{- with .extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* For charts of applications: an init container that runs on beside the others. */}}
{{- define "expiremember-proxy.sidecar" -}}
{{- $values := index .Values "expiremember-proxy-sidecar" -}}
- {{- include "expiremember-proxy.container" $values | nindent 2 }}
  restartPolicy: Always
{{- end }}

{{- define "expiremember-proxy.sidecar-volumes" -}}
{{- include "expiremember-proxy.volumes" (index .Values "expiremember-proxy-sidecar") }}
{{- end }}
