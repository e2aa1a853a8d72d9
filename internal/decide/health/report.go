package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"
)

// The API's limits.
const (
	maxConditions = 16
	maxReason     = 256
	maxMessage    = 1024
)

// Unspecified is the reason of a problem whose driver gives a reason that the API does not accept. The message then has
// the driver's own words.
const Unspecified = "Unspecified"

// Report is one problem, as reported by a driver.
type Report struct {
	// Status is the name of a status in the CSI specification, such as DEGRADED.
	Status          string
	Reason, Message string
	// AccessMode and VolumeMode say which volumes of a storage the problem is about; an empty one says all.
	AccessMode corev1.PersistentVolumeAccessMode
	VolumeMode corev1.PersistentVolumeMode
}

// ReportsOf returns the problems of a volume, or of a storage, as CSI has them.
func ReportsOf[S fmt.Stringer, E interface {
	GetStatus() S
	GetReason() string
	GetMessage() string
}](all []E) []Report {
	var out []Report
	for _, e := range all {
		out = append(out, Report{Status: e.GetStatus().String(), Reason: e.GetReason(), Message: e.GetMessage()})
	}
	return out
}

// volumeStatuses returns the statuses of volumes that the API knows, the worst first.
func volumeStatuses() []status {
	return []status{
		{"DATA_LOSS", string(corev1.VolumeHealthDataLoss)},
		{"INACCESSIBLE", string(corev1.VolumeHealthInaccessible)},
		{"DEGRADED", string(corev1.VolumeHealthDegraded)},
	}
}

// storageStatuses returns the statuses of a storage that the API knows, the worst first.
func storageStatuses() []status {
	return []status{
		{"STORAGE_UNREACHABLE", string(storagev1.StorageUnreachable)},
		{"STORAGE_DEGRADED", string(storagev1.StorageDegraded)},
	}
}

// status is one status by its names.
type status struct{ csi, api string }

// OfVolume returns what the API shows for a volume with these problems.
func OfVolume(all []Report) []corev1.VolumeHealthCondition {
	var out []corev1.VolumeHealthCondition
	for _, p := range problems(all, volumeStatuses()) {
		out = append(out, corev1.VolumeHealthCondition{
			Status: corev1.VolumeHealthStatusType(p.status), Reason: p.reason, Message: p.message(),
		})
	}
	return out
}

// OfStorage returns what the API shows for a driver's storage with these problems.
func OfStorage(all []Report) []storagev1.StorageHealthCondition {
	var out []storagev1.StorageHealthCondition
	for _, p := range problems(all, storageStatuses()) {
		c := storagev1.StorageHealthCondition{
			Status: storagev1.StorageHealthStatusType(p.status), Reason: p.reason, Message: p.message(),
		}
		if p.access != "" {
			c.AccessMode = ptr.To(p.access)
		}
		if p.mode != "" {
			c.VolumeMode = ptr.To(p.mode)
		}
		out = append(out, c)
	}
	return out
}

// identity distinguishes problems in the API.
type identity struct {
	rank           int
	status, reason string
	access         corev1.PersistentVolumeAccessMode
	mode           corev1.PersistentVolumeMode
}

type problem struct {
	identity
	texts []string
}

// message joins the texts about a problem, independently of their order.
func (p problem) message() string {
	slices.Sort(p.texts)
	return cut(strings.Join(slices.Compact(p.texts), "; "), maxMessage)
}

// problems returns the problems with a status that is known, the worst first, as many as the API takes. A client that
// knows fewer statuses than the driver must ignore the others, because the driver reports the known ones as well.
func problems(all []Report, known []status) []problem {
	var out []problem
	at := map[identity]int{}
	for _, r := range all {
		rank := slices.IndexFunc(known, func(s status) bool { return s.csi == r.Status })
		if rank < 0 {
			continue
		}
		reason, text := wording(r)
		id := identity{rank, known[rank].api, reason, r.AccessMode, r.VolumeMode}
		i, again := at[id]
		if !again {
			i = len(out)
			at[id], out = i, append(out, problem{identity: id})
		}
		if text != "" {
			out[i].texts = append(out[i].texts, text)
		}
	}
	slices.SortFunc(out, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.reason, b.reason), cmp.Compare(a.access, b.access),
			cmp.Compare(a.mode, b.mode))
	})
	return out[:min(len(out), maxConditions)]
}

// wording returns the reason and the message of a report in the form that the API accepts.
func wording(r Report) (reason, message string) {
	message = cut(line(r.Message), maxMessage)
	if isReason(r.Reason) {
		return r.Reason, message
	}
	said := []string{cut(line(r.Reason), maxMessage), message}
	return Unspecified, strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), ": ")
}

// isReason says whether the API accepts a text as a reason: a word that begins with a letter and does not end with a
// punctuation mark.
func isReason(text string) bool {
	const letters, more = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", "0123456789_"
	return text != "" && len(text) <= maxReason && strings.Trim(text, letters+more+",:") == "" &&
		strings.Contains(letters, text[:1]) && strings.Contains(letters+more, text[len(text)-1:])
}

// line returns a text as one line of valid UTF-8, without control characters.
func line(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "?"),
		func(r rune) bool { return r == ' ' || !unicode.IsPrint(r) }), " ")
}

// cut shortens a text to a number of bytes without breaking a character.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	text = text[:limit]
	for text != "" && !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text
}
