package story

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// named is a change that has a name.
type named struct{ word, patch string }

// vocabulary are the objects of one kind that have named changes, and these, first those that change most.
type vocabulary struct {
	models []runtime.Object
	words  []named
}

// vocabulary returns the names for changes of objects like o that the files have which the script uses.
func (l *library) vocabulary(o runtime.Object) (v vocabulary) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.read)) {
		f := l.read[name]
		if len(f.words) == 0 || reflect.TypeOf(f.objects[0]) != reflect.TypeOf(o) {
			continue
		}
		v.models = append(v.models, f.objects[0])
		for _, word := range slices.Sorted(maps.Keys(f.words)) {
			if !strings.Contains(f.words[word], `"$"`) {
				v.words = append(v.words, named{word, f.words[word]})
			}
		}
	}
	slices.SortStableFunc(v.words, func(a, b named) int { return cmp.Compare(len(b.patch), len(a.patch)) })
	return v
}

// model returns the object with which a new one is compared: that of testdata/objects with its name, if any.
func (v vocabulary) model(o runtime.Object) (model runtime.Object, said string) {
	for _, model := range v.models {
		if cluster.Key(kubetest.MetaOf(model)) == cluster.Key(kubetest.MetaOf(o)) {
			return model, " new"
		}
	}
	return nil, ""
}

// gained returns the words that have become true of an object and describe a part of its change. It applies these
// changes to the earlier object.
func (v vocabulary) gained(before *runtime.Object, after runtime.Object) (said string) {
	for _, n := range v.words {
		if *before == nil || !is(after, n.patch) {
			continue
		}
		changed, err := merged(*before, n.patch)
		if err == nil && len(differences(changed, after)) < len(differences(*before, after)) {
			*before, said = changed, said+" "+n.word
		}
	}
	return said
}

// lost returns the words that were true of an object and are completely undone; it removes their lines.
func (v vocabulary) lost(lines *[]string, before, after runtime.Object) (said string) {
	for _, n := range v.words {
		if before == nil || !is(before, n.patch) || is(after, n.patch) {
			continue
		}
		for _, model := range v.models {
			was, err := merged(model, n.patch)
			if err != nil {
				continue
			}
			undone := differences(was, model)
			missing := func(line string) bool { return !slices.Contains(*lines, line) }
			if len(undone) > 0 && !slices.ContainsFunc(undone, missing) {
				said += " no longer " + n.word
				*lines = slices.DeleteFunc(*lines, func(line string) bool { return slices.Contains(undone, line) })
			}
		}
	}
	return said
}

// is says whether a change has no effect on an object.
func is(o runtime.Object, patch string) bool {
	changed, err := merged(o, patch)
	return err == nil && reflect.DeepEqual(plain(changed), plain(o))
}
