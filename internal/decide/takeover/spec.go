package takeover

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
)

// immutable says whether Kubernetes refuses to change a field of a CSIDriver.
func immutable(field string) bool {
	return slices.Contains([]string{"attachRequired", "volumeLifecycleModes"}, field)
}

// change is a field of a CSIDriver that has one value, and should have another one.
type change struct{ field, is, wanted string }

// differences returns the fields that are wanted otherwise than they are, in the order of the type. A field that is
// not set is wanted as it is. All fields of the type count, also those that are added to it later.
func differences(is, wanted storagev1.CSIDriverSpec) []change {
	var out []change
	was, will := reflect.ValueOf(is), reflect.ValueOf(wanted)
	for i := range will.NumField() {
		if will.Field(i).IsZero() || reflect.DeepEqual(was.Field(i).Interface(), will.Field(i).Interface()) {
			continue
		}
		name, _, _ := strings.Cut(will.Type().Field(i).Tag.Get("json"), ",")
		out = append(out, change{name, text(was.Field(i)), text(will.Field(i))})
	}
	return out
}

// text returns a value as it is written in a manifest.
func text(v reflect.Value) string {
	if v.IsZero() {
		return "not set"
	}
	out, err := json.Marshal(v.Interface())
	if err != nil {
		return fmt.Sprint(v.Interface())
	}
	return strings.Trim(string(out), `"`)
}

// overlay returns a spec with the fields of another one that are set.
func overlay(is, wanted storagev1.CSIDriverSpec) storagev1.CSIDriverSpec {
	out := *is.DeepCopy()
	to, from := reflect.ValueOf(&out).Elem(), reflect.ValueOf(*wanted.DeepCopy())
	for i := range from.NumField() {
		if !from.Field(i).IsZero() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return out
}
