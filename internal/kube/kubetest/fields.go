package kubetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/kube"
)

// fields performs a write, and fails the test if it changes a field of the object that no right names. Without rights,
// the writer may change anything.
func fields(
	t testing.TB, rights []kube.Access, tracker clienttesting.ObjectTracker, a clienttesting.Action,
	do func() (runtime.Object, error),
) (runtime.Object, error) {
	verb := a.GetVerb()
	if verb != "update" && verb != "patch" || a.GetResource().Resource == "events" || len(rights) == 0 {
		return do()
	}
	_, name, _ := strings.Cut("/"+nameAsked(a), a.GetNamespace()+"/")
	before, missing := tracker.Get(a.GetResource(), a.GetNamespace(), name)
	o, err := do()
	if missing != nil || err != nil {
		return o, err
	}
	for _, path := range Undeclared(rights, verb, a.GetResource().Group, resourceAsked(a), before, o) {
		if p, ok := a.(clienttesting.PatchAction); ok && !Meant(p.GetPatchType(), p.GetPatch(), path) {
			continue
		}
		t.Errorf("%s %s of %s changes %s, which is not declared", verb, resourceAsked(a), nameAsked(a), path)
	}
	return o, nil
}

// Observed returns a client that may change only the fields that rights name, of objects in the tracker of another
// client; whether it may write at all is not checked.
func Observed(
	t testing.TB, client *fake.Clientset, tracker clienttesting.ObjectTracker, rights []kube.Access,
) *fake.Clientset {
	c := &fake.Clientset{}
	c.AddReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		o, err := fields(t, rights, tracker, a, func() (runtime.Object, error) { return client.Invokes(a, nil) })
		return true, o, err
	})
	c.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.InvokesWatch(a)
		return true, w, err
	})
	return c
}

// Undeclared returns the fields of an object that a write changed, and that no right
// to such a write names. The resource includes its subresource.
func Undeclared(rights []kube.Access, verb, group, resource string, before, after any) []string {
	return slices.DeleteFunc(Changed(before, after), func(path string) bool {
		return slices.ContainsFunc(rights, func(r kube.Access) bool {
			return r.Group == group && r.Resource == resource && slices.Contains(r.Verbs, verb) &&
				slices.ContainsFunc(r.Fields, func(f kube.Field) bool { return Covers(f.Path, path) })
		})
	})
}

// Covers says whether a field equals another one or contains it; both in the form of kube.Field.
func Covers(field, path string) bool {
	if beginning, ok := strings.CutSuffix(field, "*]"); ok {
		return strings.HasPrefix(path, beginning)
	}
	rest, ok := strings.CutPrefix(path, field)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// Changed returns the fields in which two states of an object differ, except those that the API server itself sets.
func Changed(before, after any) []string {
	was, is := leaves(before), leaves(after)
	all := maps.Clone(was)
	maps.Copy(all, is)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(path string) bool {
		return was[path] == is[path] || slices.ContainsFunc([]string{
			"kind", "apiVersion", "metadata.resourceVersion", "metadata.generation", "metadata.managedFields", "metadata.uid",
			"metadata.creationTimestamp", "metadata.deletionTimestamp", "metadata.deletionGracePeriodSeconds",
		}, func(server string) bool { return Covers(server, path) })
	})
}

// leaves returns what an object is made of, by fields.
func leaves(object any) map[string]string {
	var value any
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		panic(err) // no object of the API is like that
	}
	all := map[string]string{}
	collect(all, "", value)
	return all
}

func collect(all map[string]string, path string, value any) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for key, below := range v {
			if path == "metadata.annotations" || path == "metadata.labels" {
				key = "[" + key + "]"
			} else if path != "" {
				key = "." + key
			}
			collect(all, path+key, below)
		}
	case []any:
		for n, entry := range v {
			typed, _ := entry.(map[string]any)
			switch kind, ok := typed["type"].(string); {
			case strings.HasSuffix(path, ".conditions") && ok:
				collect(all, path+"["+kind+"]", entry)
			case path == "metadata.finalizers":
				all[fmt.Sprintf("%s[%v]", path, entry)] = "there"
			default:
				text, _ := json.Marshal(entry) // it came from JSON
				all[path] += fmt.Sprintf("%d: %s\n", n, text)
			}
		}
	default:
		text, _ := json.Marshal(v)
		all[path] = string(text)
	}
}

// Meant says whether a patch names a field: a patch without a version may follow another client's write, which is then
// in the answer, too.
func Meant(kind types.PatchType, patch []byte, path string) bool {
	var named []string
	if kind == types.JSONPatchType {
		var steps []struct{ Path string }
		if json.Unmarshal(patch, &steps) != nil {
			return true
		}
		for _, s := range steps {
			named = append(named, strings.ReplaceAll(strings.Trim(s.Path, "/"), "/", "."))
		}
	} else {
		var all map[string]any
		if json.Unmarshal(patch, &all) != nil {
			return true
		}
		named = patched(kind, all, "")
	}
	return slices.ContainsFunc(named, func(n string) bool { return Covers(n, path) || Covers(path, n) })
}

// patched returns the fields that a merge patch names. A whole list is one field, except that of conditions only the
// listed ones are named: a strategic merge patch merges them with the others.
func patched(kind types.PatchType, patch map[string]any, at string) []string {
	var out []string
	for key, value := range patch {
		path := strings.TrimPrefix(at+"."+key, ".")
		if strings.HasSuffix(at, ".annotations") || strings.HasSuffix(at, ".labels") {
			path = at + "[" + key + "]"
		}
		if below, ok := value.(map[string]any); ok {
			out = append(out, patched(kind, below, path)...)
			continue
		}
		if list, ok := value.([]any); ok && key == "conditions" && kind == types.StrategicMergePatchType {
			for _, c := range list {
				one, _ := c.(map[string]any)
				out = append(out, fmt.Sprintf("%s[%v]", path, one["type"]))
			}
			continue
		}
		out = append(out, path)
	}
	return out
}
