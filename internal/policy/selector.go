package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

var operators = map[metav1.LabelSelectorOperator]selection.Operator{
	metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
	metav1.LabelSelectorOpExists:       selection.Exists,
	metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
}

// requirements makes a selector of all of its parts.
func (r *reader) requirements(field string, s *metav1.LabelSelector) labels.Selector {
	out := labels.NewSelector()
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		out = r.require(out, field+".matchLabels["+key+"]", key, selection.Equals,
			[]string{s.MatchLabels[key]})
	}
	for i, e := range s.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", field, i)
		op, known := operators[e.Operator]
		if !known {
			r.fail(at+".operator", "%q is no operator: want In, NotIn, Exists or DoesNotExist",
				e.Operator)
			continue
		}
		out = r.require(out, at, e.Key, op, e.Values)
	}
	return out
}

func (r *reader) require(s labels.Selector, field, key string, op selection.Operator,
	values []string) labels.Selector {
	requirement, err := labels.NewRequirement(key, op, values)
	if err != nil {
		// It names the parts that are wrong as fields: "key: Invalid value: …".
		r.fail(field, "%s", strings.ReplaceAll(err.Error(), "\n", " "))
		return s
	}
	return s.Add(*requirement)
}

// keys are the labels that a selector goes by.
func keys(s labels.Selector) []string {
	requirements, _ := s.Requirements()
	var out []string
	for _, r := range requirements {
		out = append(out, r.Key())
	}
	return out
}
