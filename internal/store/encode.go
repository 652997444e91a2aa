package store

import (
	"errors"

	"go.yaml.in/yaml/v3"

	"weft.dev/weft/api/v1alpha1"
)

// Encode fills in an object's defaults and writes it as YAML, if it is a good one.
func Encode(o v1alpha1.Object) ([]byte, error) {
	o.SetDefaults()
	var problems []error
	for _, p := range o.Validate() {
		problems = append(problems, p)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return yaml.Marshal(o)
}
