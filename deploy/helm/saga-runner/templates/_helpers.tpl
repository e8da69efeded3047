{{- define "saga-runner.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- /* The name of a release may have dots, which names of Services and of clusters may not. */ -}}
{{- define "saga-runner.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | replace "." "-" | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "saga-runner.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | replace "." "-" | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "saga-runner.selector" -}}
app.kubernetes.io/name: {{ include "saga-runner.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "saga-runner.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "saga-runner.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "saga-runner.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "saga-runner.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* What follows the drain_timeout of the manifest: up to 5 s until commands are given back and results are published, 2 s for spans, 1 s for
connections, and the flush_timeout of the audit; the rest is a reserve. */ -}}
{{- define "saga-runner.graceSeconds" -}}
{{- $flush := dig "streams" "audit" "flush_timeout" "3s" .Values.manifest }}
{{- add (int .Values.drainTimeoutSeconds) 12 (include "saga-runner.seconds" $flush | int) }}
{{- end }}

{{- define "saga-runner.seconds" -}}
{{- if regexMatch "^[0-9]+ms$" . }}
{{- div (add (trimSuffix "ms" . | int) 999) 1000 }}
{{- else if regexMatch "^[0-9]+s$" . }}
{{- trimSuffix "s" . }}
{{- else if regexMatch "^[0-9]+m$" . }}
{{- mul (trimSuffix "m" . | int) 60 }}
{{- else }}
{{- fail (printf "manifest.streams.audit.flush_timeout is %q: write one number with ms, s or m, which is added to the time that pods are given" .) }}
{{- end }}
{{- end }}

{{- /* What cannot work is refused before anything is installed. Types, names and ranges are in values.schema.json. */ -}}
{{- define "saga-runner.check" -}}
{{- if not (has .Values.mode (list "saga" "combined")) }}
{{- fail (printf "mode is %q: write saga or combined; processes in mode effect are workers.replicas" .Values.mode) }}
{{- end }}
{{- if ne (int .Values.replicas) 1 }}
{{- fail (printf "replicas is %v: one process owns all shards; for more effects at the same time raise workers.replicas" .Values.replicas) }}
{{- end }}
{{- $decided := dict "mode" "set mode" "data_dir" "it is /data, on the volume of persistence" "sagas" "set definitions" "effects" "set definitions" "drain_timeout" "set drainTimeoutSeconds" }}
{{- range $key, $instead := $decided }}
{{- if hasKey $.Values.manifest $key }}
{{- fail (printf "manifest.%s is decided by the chart: %s" $key $instead) }}
{{- end }}
{{- end }}
{{- $decided = dict "listen" "it is 0.0.0.0:8080" "admin_listen" "it is 0.0.0.0:8081" "authentication" "set http.authentication" "tokens_file" "set http.tokens" "tls" "set http.tls" "encrypted_in_front" "set http.encryptedInFront" }}
{{- range $key, $instead := $decided }}
{{- if hasKey (dig "http" dict $.Values.manifest) $key }}
{{- fail (printf "manifest.http.%s is decided by the chart: %s" $key $instead) }}
{{- end }}
{{- end }}
{{- $http := .Values.http }}
{{- if and (eq $http.authentication "tokens") (not $http.tokens.secretName) }}
{{- fail "http.authentication tokens needs http.tokens.secretName" }}
{{- end }}
{{- if and (eq $http.authentication "in_front") $http.tokens.secretName }}
{{- fail "http.tokens.secretName is for http.authentication tokens or jwt" }}
{{- end }}
{{- if and (ne $http.authentication "in_front") (not $http.tls.secretName) (not $http.encryptedInFront) }}
{{- fail "tokens would be sent unencrypted: set http.tls.secretName, or http.encryptedInFront where something in front encrypts" }}
{{- end }}
{{- if and $http.tls.clientCertificates (not (and $http.tls.secretName $http.tokens.secretName)) }}
{{- fail "http.tls.clientCertificates needs http.tls.secretName, and http.tokens.secretName, which says what the owner of a certificate may do" }}
{{- end }}
{{- $kind := dig "broker" "kind" "embedded" .Values.manifest }}
{{- if and (ne $kind "nats") (or (ne .Values.mode "combined") (gt (int .Values.workers.replicas) 0)) }}
{{- fail "manifest.broker.kind has to be nats where there are workers, or mode is saga: only one process reaches the embedded broker" }}
{{- end }}
{{- if and (eq (dig "dispatch" "broker" .Values.manifest) "local") (or (ne .Values.mode "combined") (gt (int .Values.workers.replicas) 0)) }}
{{- fail "manifest.dispatch local is for mode combined without workers" }}
{{- end }}
{{- end }}

{{- /* The keys of the manifest that the chart decides. */ -}}
{{- define "saga-runner.decided" -}}
apiVersion: saga-runner/v1
kind: Manifest
mode: {{ .Values.mode }}
data_dir: /data
sagas: /etc/saga-runner/sagas
effects: /etc/saga-runner/effects
drain_timeout: {{ .Values.drainTimeoutSeconds }}s
http:
  listen: 0.0.0.0:8080
  admin_listen: 0.0.0.0:8081
  authentication: {{ .Values.http.authentication }}
{{- end }}

{{- /* Those that it decides where values ask for it. */ -}}
{{- define "saga-runner.tokens" -}}
http:
  tokens_file: /etc/saga-runner/tokens/{{ .Values.http.tokens.key }}
{{- end }}

{{- define "saga-runner.tls" -}}
http:
  tls:
    certificate_file: /etc/saga-runner/tls/tls.crt
    key_file: /etc/saga-runner/tls/tls.key
{{- end }}

{{- define "saga-runner.clientCertificates" -}}
http:
  tls:
    client_ca_file: /etc/saga-runner/tls/ca.crt
    client_certificates: optional
{{- end }}

{{- define "saga-runner.encryptedInFront" -}}
http:
  encrypted_in_front: true
{{- end }}

{{- define "saga-runner.manifest" -}}
{{- $name := include "saga-runner.fullname" . }}
{{- $manifest := mergeOverwrite (dict "cluster" $name) (deepCopy .Values.manifest) (include "saga-runner.decided" . | fromYaml) }}
{{- if .Values.http.tokens.secretName }}
{{- $manifest = mergeOverwrite $manifest (include "saga-runner.tokens" . | fromYaml) }}
{{- end }}
{{- if .Values.http.tls.secretName }}
{{- $manifest = mergeOverwrite $manifest (include "saga-runner.tls" . | fromYaml) }}
{{- end }}
{{- if .Values.http.tls.clientCertificates }}
{{- $manifest = mergeOverwrite $manifest (include "saga-runner.clientCertificates" . | fromYaml) }}
{{- end }}
{{- if .Values.http.encryptedInFront }}
{{- $manifest = mergeOverwrite $manifest (include "saga-runner.encryptedInFront" . | fromYaml) }}
{{- end }}
{{- $hosts := list }}
{{- range $service := list $name (printf "%s-headless" $name) (printf "%s-metrics" $name) }}
{{- range $suffix := list "" (printf ".%s" $.Release.Namespace) (printf ".%s.svc" $.Release.Namespace) (printf ".%s.svc.cluster.local" $.Release.Namespace) }}
{{- $hosts = append $hosts (printf "%s%s" $service $suffix) }}
{{- end }}
{{- end }}
{{- $_ := set $manifest.http "hosts" (concat $hosts (dig "http" "hosts" list .Values.manifest) | uniq) }}
{{- toYaml $manifest }}
{{- end }}

{{- define "saga-runner.definitions" -}}
{{- $given := index .root.Values.definitions.existing .kind }}
{{- default (printf "%s-%s" (include "saga-runner.fullname" .root) .kind) $given }}
{{- end }}

{{- define "saga-runner.podAnnotations" -}}
checksum/manifest: {{ include "saga-runner.manifest" . | sha256sum }}
{{- if .Values.definitions.restartOnChange }}
checksum/definitions: {{ omit .Values.definitions "restartOnChange" | toYaml | sha256sum }}
{{- end }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "saga-runner.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "saga-runner.scheme" -}}
{{- ternary "HTTPS" "HTTP" (not (empty .Values.http.tls.secretName)) }}
{{- end }}

{{- /* What the containers of both kinds have in common. */ -}}
{{- define "saga-runner.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: ["run", "--config", "/etc/saga-runner/config/saga-runner.yaml"]
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
ports:
  - {name: http, containerPort: 8080}
  - {name: admin, containerPort: 8081}
# /live asks neither storage nor broker, so that no outage of theirs restarts the process. A start may wait for the broker for as
# long as it takes: /live answers meanwhile.
startupProbe:
  httpGet: {path: /live, port: http, scheme: {{ include "saga-runner.scheme" . }}}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /live, port: http, scheme: {{ include "saga-runner.scheme" . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /ready, port: http, scheme: {{ include "saga-runner.scheme" . }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{- /* Owner and group may read, 0440, as a decimal number: YAML 1.2 reads no other. The runner refuses secrets that every user may read. */ -}}
{{- define "saga-runner.secretMode" -}}
288
{{- end }}

{{- define "saga-runner.mounts" -}}
- {name: manifest, mountPath: /etc/saga-runner/config, readOnly: true}
{{- range $kind := list "sagas" "effects" "schemas" }}
- {name: {{ $kind }}, mountPath: /etc/saga-runner/{{ $kind }}, readOnly: true}
{{- end }}
{{- if .Values.http.tokens.secretName }}
- {name: tokens, mountPath: /etc/saga-runner/tokens, readOnly: true}
{{- end }}
{{- if .Values.http.tls.secretName }}
- {name: tls, mountPath: /etc/saga-runner/tls, readOnly: true}
{{- end }}
{{- range .Values.secretFiles }}
- {name: secret-{{ .name }}, mountPath: /etc/saga-runner/secrets/{{ .name }}, readOnly: true}
{{- end }}
# Sockets of SQL effects.
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "saga-runner.volumes" -}}
- name: manifest
  configMap: {name: {{ include "saga-runner.fullname" . }}}
{{- range $kind := list "sagas" "effects" "schemas" }}
- name: {{ $kind }}
  configMap: {name: {{ include "saga-runner.definitions" (dict "root" $ "kind" $kind) }}}
{{- end }}
{{- range .Values.secretFiles }}
- name: secret-{{ .name }}
  secret: {secretName: {{ .secretName }}, defaultMode: {{ include "saga-runner.secretMode" $ }}}
{{- end }}
{{- with .Values.http.tokens.secretName }}
- name: tokens
  secret: {secretName: {{ . }}, defaultMode: {{ include "saga-runner.secretMode" $ }}}
{{- end }}
{{- with .Values.http.tls.secretName }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: {{ include "saga-runner.secretMode" $ }}}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
