package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/config/strictyaml"
	"weft.dev/weft/internal/store"
)

// agentsKinds are written by agents, each in its own way: nobody applies them.
var agentsKinds = []string{v1alpha1.KindEndpoint, v1alpha1.KindEpoch, v1alpha1.KindIdentity}

// openObjects opens the store that a configuration names.
func openObjects(path string) (store.Editor, error) {
	cfg, err := config.Load(path)
	if err != nil {
		return nil, err
	}
	opened, err := agent.OpenStore(cfg.Store, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return opened, nil
}

func configFlag(cmd *cobra.Command, path *string) *cobra.Command {
	cmd.Flags().StringVar(path, "config", config.DefaultPath,
		"the agent's configuration, which says where objects are")
	return cmd
}

func newApply(a *app) *cobra.Command {
	var path string
	var files []string
	cmd := &cobra.Command{
		Use:   "apply -f FILE…",
		Short: "Write objects to the store",
		Long: `Write the objects of files, - for standard input, to where the agent's configuration says that objects
are: the directory's sub-directory applied, etcd, or Kubernetes (Weft's own kinds alone). Everything
is checked first, the objects and how they fit with those in the store; if anything is wrong, nothing
is written, and each error names file, line and field.

Agents write Endpoint, Identity and Epoch objects; these are refused.`,
		Example: "  weft apply -f nodes.yaml\n  weft apply -f nodes.yaml -f policies.yaml --config /etc/weft/admin.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := readObjects(files, cmd.InOrStdin())
			if err != nil {
				return err
			}
			opened, err := openObjects(path)
			if err != nil {
				return err
			}
			return a.apply(opened, objects)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil,
		"file with objects; may be given several times")
	_ = cmd.MarkFlagRequired("file")
	return configFlag(cmd, &path)
}

// readObjects reads files, and fails for anything that is wrong in any of them.
func readObjects(files []string, in io.Reader) ([]store.Declared, error) {
	var out []store.Declared
	var wrong []error
	for _, file := range files {
		data, err := readInput(file, in)
		if err != nil {
			return nil, fmt.Errorf("read objects: %w", err)
		}
		objects, errs := store.Decode(file, data)
		for _, e := range errs {
			wrong = append(wrong, e)
		}
		for _, o := range objects {
			if kind := o.Object.Type().Kind; slices.Contains(agentsKinds, kind) {
				wrong = append(wrong,
					store.ObjectError{File: file, Line: o.Line, Field: "kind",
						Msg: "is " + kind + ", which agents write: take it away"})
			}
		}
		out = append(out, objects...)
	}
	if len(wrong) == 0 && len(out) == 0 {
		return nil, fmt.Errorf("there is no object in %s", strings.Join(files, ", "))
	}
	return out, errors.Join(wrong...)
}

func readInput(file string, in io.Reader) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(io.LimitReader(in, strictyaml.MaxSize+1))
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, strictyaml.MaxSize+1))
}

// applied is what became of one object.
type applied struct {
	Kind   string `json:"kind"`
	Key    string `json:"name"`
	Result string `json:"result"`
}

// apply writes objects once all of them fit with each other and with what is there.
func (a *app) apply(to store.Editor, objects []store.Declared) error {
	there, err := to.Snapshot()
	if err != nil {
		return fmt.Errorf("read objects: %w", err)
	}
	if err := fit(there, objects); err != nil {
		return err
	}
	var done []applied
	for _, d := range objects {
		o, result := d.Object, "created"
		if there.Object(o.Type().Kind, o.Meta().Key()) != nil {
			result = "configured"
		}
		if err = to.PutObject(o); err != nil {
			break
		}
		done = append(done, applied{o.Type().Kind, o.Meta().Key(), result})
	}
	if len(done) == 0 {
		return err
	}
	return cmp.Or(err, a.Print(done, func(w io.Writer, _ bool) error {
		for _, d := range done {
			if _, err := fmt.Fprintf(w, "%s %s %s\n", d.Kind, d.Key, d.Result); err != nil {
				return err
			}
		}
		return nil
	}))
}

// fit says what would be wrong if objects were written to where others are. Those that they replace
// do not count.
func fit(there *store.Snapshot, objects []store.Declared) error {
	all, files := slices.Clone(objects), map[string]bool{}
	replaced := map[string]bool{}
	for _, d := range objects {
		files[d.File] = true
		replaced[d.Object.Type().Kind+" "+d.Object.Meta().Key()] = true
	}
	var nodes []*v1alpha1.Node
	for _, kind := range store.Kinds() {
		for _, o := range there.Objects(kind) {
			if replaced[kind+" "+o.Meta().Key()] {
				continue
			}
			if n, ok := o.(*v1alpha1.Node); ok {
				nodes = append(nodes, n)
			}
			all = append(all, store.Declared{Object: o, File: kind + " " + o.Meta().Key()})
		}
	}
	var h store.History
	h.Seed(nodes)
	var wrong []error
	for _, e := range h.Assemble(all, nil).Errors {
		if files[e.File] {
			wrong = append(wrong, e)
		}
	}
	return errors.Join(wrong...)
}

func newGet(a *app) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "Show objects of the store",
		Long: `Show the objects of a kind, or one of them, as every agent reads them. NAME is NAMESPACE/NAME where
the kind has namespaces; without one it is that of namespace default. The kind is written in any case.

With -o yaml, what is printed can be applied again.`,
		Example: "  weft get node\n  weft get pod shop/web -o yaml\n  weft get endpoint -o json --config /etc/weft/admin.yaml",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			kind, err := kindOf(args[0])
			if err != nil {
				return err
			}
			opened, err := openObjects(path)
			if err != nil {
				return err
			}
			there, err := opened.Snapshot()
			if err != nil {
				return fmt.Errorf("read objects: %w", err)
			}
			if len(args) == 2 {
				o := there.Object(kind, keyOf(there, kind, args[1]))
				if o == nil {
					return fmt.Errorf("get %s %s: %w", kind, args[1], store.ErrNotFound)
				}
				return a.printObjects(kind, []v1alpha1.Object{o}, o)
			}
			list := there.Objects(kind)
			return a.printObjects(kind, list, list)
		},
	}
	cmd.ValidArgsFunction = completeKinds
	return configFlag(cmd, &path)
}

func newDelete(a *app) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "delete KIND NAME",
		Short: "Remove an object from the store",
		Long: `Remove an object from the store. NAME is as for "get". In a directory this removes what "apply" or an
agent wrote; an object in another file is to be removed there by hand.

An Endpoint is to be removed only when its node is gone for good, an Identity only when no pod has it any
more. Epochs are removed by agents alone.`,
		Example: "  weft delete node node-3\n  weft delete pod shop/web",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			kind, err := kindOf(args[0])
			if err != nil {
				return err
			}
			if kind == v1alpha1.KindEpoch {
				return cmdutil.UsageError("epochs are removed by agents alone: see `weft keys`")
			}
			opened, err := openObjects(path)
			if err != nil {
				return err
			}
			there, err := opened.Snapshot()
			if err != nil {
				return fmt.Errorf("read objects: %w", err)
			}
			key := keyOf(there, kind, args[1])
			if err := opened.DeleteObject(kind, key); err != nil {
				return err
			}
			return a.Print(applied{kind, key, "deleted"}, func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "%s %s deleted\n", kind, key)
				return err
			})
		},
	}
	cmd.ValidArgsFunction = completeKinds
	return configFlag(cmd, &path)
}

func completeKinds(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var kinds []string
	for _, kind := range store.Kinds() {
		kinds = append(kinds, strings.ToLower(kind))
	}
	return kinds, cobra.ShellCompDirectiveNoFileComp
}

// kindOf finds a kind by its name in any case.
func kindOf(name string) (string, error) {
	for _, kind := range store.Kinds() {
		if strings.EqualFold(kind, name) {
			return kind, nil
		}
	}
	return "", cmdutil.UsageError("%q is no kind of object: use one of %s", name,
		strings.ToLower(strings.Join(store.Kinds(), ", ")))
}

// keyOf is the key that a name means: a name alone may be that of an object without a namespace.
func keyOf(there *store.Snapshot, kind, name string) string {
	if strings.Contains(name, "/") || there.Object(kind, name) != nil {
		return name
	}
	if key := v1alpha1.DefaultNamespace + "/" + name; there.Object(kind, key) != nil {
		return key
	}
	return name
}

// printObjects prints objects of one kind; value is what machine formats print.
func (a *app) printObjects(kind string, list []v1alpha1.Object, value any) error {
	if a.Format == string(output.YAML) {
		for n, o := range list {
			if n > 0 {
				fmt.Fprintln(a.Out, "---")
			}
			if err := a.Print(o, nil); err != nil {
				return err
			}
		}
		return nil
	}
	return a.Print(value, func(w io.Writer, wide bool) error {
		rows := output.Rows{Header: []string{"NAME", "LABELS", "WHAT"},
			Empty: "there is no " + kind}
		for _, o := range list {
			rows.Add(o.Meta().Key(), cmp.Or(output.Labels(o.Meta().Labels), "-"), describeObject(o))
		}
		return rows.Write(w, wide)
	})
}

// describeObject is what tells one object from another, in a few words.
func describeObject(o v1alpha1.Object) string {
	switch o := o.(type) {
	case *v1alpha1.Node:
		return output.Join(o.Spec.Addresses) + "; " + output.Join(o.Spec.PodCIDRs)
	case *v1alpha1.Pod:
		return "service account " + o.Spec.ServiceAccount
	case *v1alpha1.Endpoint:
		return output.Join(o.Spec.Addresses) + " on " + o.Spec.NodeName
	case *v1alpha1.Epoch:
		return "until " + o.Spec.Expires.String()
	case *v1alpha1.Identity:
		return o.Spec.SPIFFEID
	}
	return "-"
}
