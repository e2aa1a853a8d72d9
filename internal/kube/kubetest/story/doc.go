// Package story runs the stories of a controller: scripts that say what users and other controllers do, what fails,
// and what the controller must do about it.
//
// Each file testdata/*.txt is a test of its own in a bubble of testing/synctest, where time is virtual. It is a txtar
// archive: a script for testscript, then objects as YAML files, then the texts that the script expects. An object that
// several stories use is a file in testdata/objects; an object without a uid has its name as uid. KIND is pvc, pv, sc,
// va, pod, node and so on (kinds in objects.go); an object is KIND/NAME or KIND/NAMESPACE/NAME.
//
//	scene [FILE...]          kills the last controller, and starts over with these objects, which no client has written
//	start                    starts the controller
//	restart                  kills the controller and starts it again; only the API remembers anything
//	kill                     kills the controller
//	apply FILE [with YAML]   creates or replaces objects; YAML is a merge patch of them
//	patch OBJECT YAML        changes an object and its status by a merge patch
//	delete OBJECT...         deletes objects as users do; finalizers and nodes may keep them
//	drop OBJECT...           removes objects, whatever keeps them
//	pass DURATION            lets virtual time pass
//	refuse REQUEST CODE [N]  refuses the next N requests (all, if N is missing) with conflict, notfound, forbidden,
//	                         toomany, timeout or internal
//	lose REQUEST [N]         does the next N writes, and answers with an error
//	during REQUEST COMMAND   runs a command in the middle of the next such request, before it is done or refused
//	allow                    ends all that refuse, lose and during have begun
//	written FILE [with YAML] has another controller of the process write objects, which no watch reports
//	look KEY                 has the controller reconcile a key, such as claim/ns/c, at this moment
//	silence                  lets watches that begin later report nothing: caches keep what they list
//	expect NAME              compares what the controller has done and reported since the last expect with the text
//	                         NAME of the file. "nothing" means no text. With -sort before NAME, different objects may
//	                         be written, and different lines noted, in any order
//	table NAME KIND [COLUMN...]   compares a table of all objects of the kind; a COLUMN is HEADER=.json.path
//	faults                   repeats the whole story once for each write of the controller and for each way in which it
//	                         can fail (refused with a conflict; done but not answered; the controller dies before or
//	                         after it): in the end all objects must be the same, and no write is done twice
//
// A REQUEST is a verb and a resource, as in RBAC rules: "update persistentvolumes/status". Every command but during
// returns when all goroutines rest. Expected are the different requests that read, after the caches were filled; then
// in order the writes with the fields that they change, and what the package's doubles note by Scene.Note; then the
// different events. A write that failed with a conflict because of another client's write is left out.
// UPDATE_GOLDEN=1 writes the texts and tables into the files; read the difference before you commit it.
//
// A package adds commands of its own, for example of a double of its driver, by Cast.Commands.
package story
