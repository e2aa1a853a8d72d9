package statefile

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/volume"
)

// Clean returns copies of the objects with what an explanation reads of them and no secrets, to be shown to strangers.
// Fields are named one by one: what is not named in this package is left out.
func Clean(o state.Objects) state.Objects {
	c := newCleaner()
	c.learn(o)
	c.clean(o) // so that all secrets are known, whatever object has them
	clear(c.done)
	return c.clean(o)
}

func (c cleaner) clean(o state.Objects) state.Objects {
	out := state.Objects{
		Moves: o.Moves, Now: o.Now, MakingHidden: o.MakingHidden, LeasesHidden: o.LeasesHidden,
		SnapshotsHidden: o.SnapshotsHidden, Warnings: each(c, eventFields(), o.Warnings),
		Namespaces: each(c, namespaceFields(), o.Namespaces), Leases: each(c, keep(": spec"), o.Leases),
	}
	for _, in := range o.Begun {
		out.Begun = append(out.Begun, c.intent(in))
	}
	out.Claims, out.Volumes = each(c, claimFields(), o.Claims), each(c, volumeFields(), o.Volumes)
	for i, claim := range o.Claims {
		out.Claims[i].Labels = c.chosen(claim.Labels)
	}
	for i, v := range o.Volumes {
		out.Volumes[i].Labels = c.attributes(v.Labels) // claims select by them
	}
	out.Pods, out.Nodes = each(c, podFields(), o.Pods), each(c, nodeFields(), o.Nodes)
	out.Classes, out.Drivers = each(c, classFields(), o.Classes), each(c, keep(": spec"), o.Drivers)
	out.Attachments, out.CSINodes = each(c, attachmentFields(), o.Attachments), each(c, csiNodeFields(), o.CSINodes)
	out.Snapshots, out.Groups = each(c, snapshotFields(), o.Snapshots), each(c, snapshotFields(), o.Groups)
	out.SnapshotContents = each(c, contentFields(), o.SnapshotContents)
	out.GroupContents = each(c, contentFields(), o.GroupContents)
	out.SnapshotClasses = each(c, snapshotClassFields(), o.SnapshotClasses)
	out.GroupClasses = each(c, snapshotClassFields(), o.GroupClasses)
	if o.Full != nil {
		full := *o.Full
		full.Message = c.text(full.Message)
		out.Full = &full
	}
	return out
}

// object is a pointer to an object of the API.
type object[T any] interface {
	*T
	metav1.Object
}

// each returns copies of objects with what is kept of them.
func each[T any, O object[T]](c cleaner, f fields, all []O) []O {
	out := make([]O, 0, len(all))
	for _, o := range all {
		kept, _ := c.kept(f, "", fieldsOf(o), leftOut).(map[string]any)
		next := O(new(T))
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(kept, next); err != nil {
			next = O(new(T)) // an object that cannot be read again is worth its metadata
		}
		c.copyMeta(next, o)
		out = append(out, next)
	}
	return out
}

// fieldsOf returns the fields of an object as JSON has them.
func fieldsOf(o any) map[string]any {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil // every kind of the API has JSON
	}
	return raw
}

// kept returns what is kept of the value at a path, or nil; how is the treatment of the path above it.
func (c cleaner) kept(f fields, path string, v any, how treatment) any {
	if own, ok := f[path]; ok {
		how = own
	}
	switch v := v.(type) {
	case map[string]any:
		if how == attributes {
			c.add(texts(v))
			return c.hidden(v)
		}
		return c.keptOf(f, path, v, how)
	case []any:
		var out []any
		for _, item := range v {
			if kept := c.kept(f, path, item, how); kept != nil {
				out = append(out, kept)
			}
		}
		if out == nil {
			return nil
		}
		return out
	case string:
		if how == prose {
			return c.text(v)
		}
	}
	if how == leftOut {
		return nil
	}
	return v
}

// keptOf is kept for the fields of an object.
func (c cleaner) keptOf(f fields, path string, all map[string]any, how treatment) any {
	out := map[string]any{}
	for name, value := range all {
		if kept := c.kept(f, below(path, name), value, how); kept != nil {
			out[name] = kept
		}
	}
	if len(out) == 0 && how == leftOut {
		return nil
	}
	return out
}

func below(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// cleaner knows the secrets that were found among the attributes, so that it finds them in texts too.
type cleaner struct {
	secrets *redact.Secrets
	// forms are secrets by their form, whatever they are called elsewhere; each is replaced by the text beside it.
	forms []form
	// done are texts that were cleaned: many objects have the same.
	done map[string]string
	// chosenBy are the keys of labels by which groups of snapshots choose their claims.
	chosenBy map[string]bool
}

type form struct {
	like *regexp.Regexp
	by   string
}

func newCleaner() cleaner {
	const words = `passw|pwd|secret|token|credential|api_?key|access_?key|private`
	return cleaner{secrets: &redact.Secrets{}, done: map[string]string{}, chosenBy: map[string]bool{}, forms: []form{
		{regexp.MustCompile(`://[^/\s@]+@`), "://" + redact.Hidden + "@"},
		{regexp.MustCompile(`(?s)-----BEGIN [^-]*-----.*?(-----END [^-]*-----|$)`), redact.Hidden},
		{regexp.MustCompile(`(?i)([\w.\-]*(?:` + words + `)[\w.\-]*\\?"?(?:=|\s*:\s*\\?"))[^\s"',;&\\]+`), "${1}" +
			redact.Hidden},
		{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[\w+/.=~\-]{8,}`), "${1} " + redact.Hidden},
	}}
}

// shortestSecret is the length of the shortest value that is looked for in texts: many
// words have a shorter one in them.
const shortestSecret = 6

// learn remembers what is to be hidden of intents, and by which labels groups choose their claims: of claims no other
// ones are kept.
func (c cleaner) learn(o state.Objects) {
	for _, in := range o.Begun {
		c.add(in.Parameters)
		c.add(in.Mutable)
	}
	for _, g := range o.Groups {
		if g.Spec.Source.Selector == nil {
			continue
		}
		for key := range g.Spec.Source.Selector.MatchLabels {
			c.chosenBy[key] = true
		}
		for _, e := range g.Spec.Source.Selector.MatchExpressions {
			c.chosenBy[e.Key] = true
		}
	}
}

// texts returns the values of attributes, which are texts.
func texts(all map[string]any) map[string]string {
	out := map[string]string{}
	for name, value := range all {
		out[name], _ = value.(string)
	}
	return out
}

func (c cleaner) add(attributes map[string]string) {
	for name, value := range attributes {
		if len(value) >= shortestSecret && secretName(name) {
			c.secrets.Add(value)
		}
	}
}

// secretName says whether an attribute's name suggests a secret value. The name of a Secret is not a secret value.
func secretName(name string) bool {
	plain := strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "", "/", "", " ", "").Replace(name))
	if strings.HasSuffix(plain, "secretname") || strings.HasSuffix(plain, "secretnamespace") {
		return false
	}
	for _, word := range []string{
		"secret", "passw", "pwd", "passphrase", "token", "credential", "key", "auth", "private", "cert", "signature",
		"cookie", "session",
		"bearer", "sas", "pin",
	} {
		if strings.Contains(plain, word) {
			return true
		}
	}
	return false
}

// text returns a text without secrets.
func (c cleaner) text(s string) string {
	if s == "" {
		return ""
	}
	if clean, known := c.done[s]; known {
		return clean
	}
	clean := s
	for _, f := range c.forms {
		clean = f.like.ReplaceAllString(clean, f.by)
	}
	c.done[s] = c.secrets.Hide(clean)
	return c.done[s]
}

func (c cleaner) attributes(all map[string]string) map[string]string {
	var out map[string]string
	for name, value := range all {
		if out == nil {
			out = map[string]string{}
		}
		out[name] = c.text(value)
		if secretName(name) {
			out[name] = redact.Hidden
		}
	}
	return out
}

// hidden is attributes for what an object has them as JSON.
func (c cleaner) hidden(all map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range c.attributes(texts(all)) {
		out[name] = value
	}
	return out
}

// copyMeta copies metadata without labels, and without what a user has written.
func (c cleaner) copyMeta(to, from metav1.Object) {
	to.SetName(from.GetName())
	to.SetNamespace(from.GetNamespace())
	to.SetUID(from.GetUID())
	to.SetCreationTimestamp(from.GetCreationTimestamp())
	to.SetDeletionTimestamp(from.GetDeletionTimestamp())
	to.SetDeletionGracePeriodSeconds(from.GetDeletionGracePeriodSeconds())
	to.SetFinalizers(from.GetFinalizers())
	to.SetOwnerReferences(from.GetOwnerReferences())
	notes := maps.Clone(from.GetAnnotations())
	maps.DeleteFunc(notes, func(name, _ string) bool { return !keptAnnotation(name) })
	for name, value := range notes {
		notes[name] = c.text(value)
	}
	to.SetAnnotations(notes)
}

// chosen returns the labels by which groups choose a claim.
func (c cleaner) chosen(labels map[string]string) map[string]string {
	out := maps.Clone(labels)
	maps.DeleteFunc(out, func(key, _ string) bool { return !c.chosenBy[key] })
	return out
}

// keptAnnotation says whether an annotation is ours or one that volumes go by, and not
// one that holds what a user has written.
func keptAnnotation(name string) bool {
	switch name {
	case volume.AnnMountOptions, volume.AnnMigratedFrom, volume.AnnSnapshotParameters:
		return false
	}
	domain, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{
		"volplane.dev", "pv.kubernetes.io", "volume.kubernetes.io", "volume.beta.kubernetes.io", "volume.alpha.kubernetes.io",
		"volumes.kubernetes.io", "storageclass.kubernetes.io", "storageclass.beta.kubernetes.io", "csi.alpha.kubernetes.io",
		"csi.volume.kubernetes.io", "snapshot.storage.kubernetes.io", "groupsnapshot.storage.kubernetes.io",
		volume.GroupGroupSnapshot,
	}, domain)
}

func (c cleaner) intent(in *provision.Intent) *provision.Intent {
	return &provision.Intent{
		Driver: in.Driver, Claim: in.Claim, Name: in.Name, Bytes: in.Bytes, Parameters: c.attributes(in.Parameters),
		Modes: in.Modes,
		Block: in.Block, Class: in.Class, Reclaim: in.Reclaim, Begun: in.Begun,
		Source: in.Source, Snapshot: in.Snapshot, SourceName: in.SourceName, SourceNamespace: in.SourceNamespace,
	}
}
