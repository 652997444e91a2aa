package lab

import (
	"bytes"
	"fmt"
	"path/filepath"

	"go.yaml.in/yaml/v3"
	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/statefile"
	"weft.dev/weft/internal/store/etcd"
)

// writeNodeObjects declares the nodes to every agent.
func writeNodeObjects(s *Spec) error {
	return declare(s, "nodes.yaml", nodeObjects(s))
}

// nodeObjects leaves out bare nodes without pod ranges: nobody routes pods to them, and agents
// would try in vain to agree on keys with them.
func nodeObjects(s *Spec) []v1alpha1.Object {
	var docs []v1alpha1.Object
	for _, n := range s.Nodes {
		if n.Bare() && len(n.PodCIDRs) == 0 {
			continue
		}
		docs = append(docs, &v1alpha1.Node{
			TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindNode},
			Metadata: v1alpha1.ObjectMeta{Name: n.Name},
			Spec:     v1alpha1.NodeSpec{Addresses: addrsOf(n.Addresses), PodCIDRs: n.PodCIDRs},
		})
	}
	return docs
}

// writePodObjects declares the pods: what the CNI plugin's caller does not say.
func writePodObjects(s *Spec) error {
	return declare(s, "pods.yaml", podObjects(s))
}

func podObjects(s *Spec) []v1alpha1.Object {
	var docs []v1alpha1.Object
	for _, p := range s.Pods {
		if s.node(p.Node).Bare() {
			continue
		}
		var annotations map[string]string
		if p.PodDatapath != "" {
			annotations = map[string]string{v1alpha1.DatapathAnnotation: p.PodDatapath}
		}
		docs = append(docs, &v1alpha1.Pod{
			TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindPod},
			Metadata: v1alpha1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels,
				Annotations: annotations},
			Spec: v1alpha1.PodSpec{NodeName: p.Node, ServiceAccount: p.ServiceAccount,
				Addresses: p.Addresses},
		})
	}
	return docs
}

// declare writes objects where the agents look for them.
func declare(s *Spec, file string, docs []v1alpha1.Object) error {
	if len(s.Etcd) == 0 {
		return writeDocs(filepath.Join(labdir.Objects(s.Name), file), docs)
	}
	objects, err := etcd.Open(etcd.Options{Endpoints: s.Etcd, Prefix: etcdPrefix(s)})
	if err != nil {
		return err
	}
	defer objects.Close()
	for _, doc := range docs {
		if err := objects.PutObject(doc); err != nil {
			return err
		}
	}
	return nil
}

func etcdPrefix(s *Spec) string { return "/" + s.Name }

// storeConfig is where a lab's objects are, for its agents.
func storeConfig(s *Spec) map[string]any {
	if len(s.Etcd) == 0 {
		return map[string]any{"dir": labdir.Objects(s.Name)}
	}
	return map[string]any{"etcd": map[string]any{"endpoints": s.Etcd, "prefix": etcdPrefix(s)}}
}

// writeDocs writes objects as one multi-document file, in one step.
func writeDocs(path string, docs []v1alpha1.Object) error {
	if len(docs) == 0 {
		return statefile.WriteMode(path, nil, 0o644) // the encoder cannot close an empty stream
	}
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	for _, doc := range docs {
		if err := enc.Encode(doc); err != nil {
			return fmt.Errorf("encode objects for %s: %w", path, err)
		}
	}
	if err := enc.Close(); err != nil {
		return fmt.Errorf("encode objects for %s: %w", path, err)
	}
	return statefile.WriteMode(path, buf.Bytes(), 0o644)
}

// agentConfig is a node's agent.yaml: the lab's own keys, over the node's, over the lab-wide ones.
func agentConfig(s *Spec, n NodeSpec) ([]byte, error) {
	config := map[string]any{
		"uplinks": s.uplinks(n.Name),
		"metrics": map[string]any{"listen": "127.0.0.1:9551"},
		"log":     map[string]any{"level": "info"},
	}
	if s.Encrypted() {
		config["keys"] = keysConfig(s, n)
	} else {
		config["encryption"] = map[string]any{"mode": EncryptionOff}
	}
	config = merge(merge(config, s.Agent), n.Config)
	if n.Mode != "" {
		config["mode"] = n.Mode
	}
	config["node"] = n.Name
	config["instance"] = instance(s.Name, n.Name)
	config["store"] = storeConfig(s)
	config["paths"] = map[string]any{"state": stateDir(s.Name, n.Name)}
	data, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("write agent configuration of node %s: %w", n.Name, err)
	}
	return data, nil
}

// merge lays over on base, mapping by mapping; both stay as they are.
func merge(base, over map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range base {
		out[k] = v
	}
	for k, v := range over {
		below, okBelow := out[k].(map[string]any)
		above, okAbove := v.(map[string]any)
		if okBelow && okAbove {
			out[k] = merge(below, above)
		} else {
			out[k] = v
		}
	}
	return out
}
