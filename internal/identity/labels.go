package identity

import "strings"

// LabelFilter says which labels of a pod are part of its identity, by patterns: a label's key,
// which may end in "*". A label is part that matches one of Include and none of Exclude.
type LabelFilter struct {
	// Include is, when it is empty, every label but those that tell pods of one workload apart, or
	// say where they run: see noise.
	Include, Exclude []string
}

// noise are labels that would give every pod, revision or zone an identity of its own.
var noise = []string{
	"pod-template-hash", "pod-template-generation", "controller-revision-hash", "controller-uid",
	"job-name",
	"batch.kubernetes.io/*", "statefulset.kubernetes.io/*", "apps.kubernetes.io/pod-index",
	"apps.kubernetes.io/daemonset-*",
	"topology.kubernetes.io/*", "failure-domain.beta.kubernetes.io/*", "node.kubernetes.io/*",
	"io.kubernetes.*", "annotation.io.kubernetes.*", "kubernetes.io/arch", "kubernetes.io/hostname",
	"kubernetes.io/os",
	"beta.kubernetes.io/*",
}

// Relevant says whether a label is part of identities.
func (f LabelFilter) Relevant(key string) bool {
	included := !matches(noise, key)
	if len(f.Include) > 0 {
		included = matches(f.Include, key)
	}
	return included && !matches(f.Exclude, key)
}

// Of are the labels that are part of an identity, nil for none.
func (f LabelFilter) Of(labels map[string]string) map[string]string {
	var out map[string]string
	for key, value := range labels {
		if !f.Relevant(key) {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	return out
}

func matches(patterns []string, key string) bool {
	for _, p := range patterns {
		if start, open := strings.CutSuffix(p, "*"); p == key || open &&
			strings.HasPrefix(key, start) {
			return true
		}
	}
	return false
}
