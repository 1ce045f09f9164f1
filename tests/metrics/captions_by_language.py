"""Captions of photographs in English and twelve other languages, written for these tests: ten of each, in three parts,
which may be combined."""

import re
from itertools import islice, product

PARTS = {
    "english": """
    A brown dog | runs across a field | with a stick in its mouth
    Two young boys | are playing football | on a sandy beach
    A woman in a red coat | is waiting | at the bus stop
    An old man | sits on a bench | and feeds the pigeons
    A group of people | is standing | in front of a church
    The girl with the hat | is looking at a book | under a large tree
    A cyclist | rides down the street | past several parked cars
    Three children | jump into the water | from a wooden pier
    A man wearing glasses | is cooking something | in a small kitchen
    A white cat | is asleep | between two cushions on the sofa
    """,
    "german": """
    Ein brauner Hund | läuft über eine Wiese | mit einem Stock im Maul
    Zwei kleine Jungen | spielen Fußball | an einem Sandstrand
    Eine Frau in einem roten Mantel | wartet | an der Bushaltestelle
    Ein alter Mann | sitzt auf einer Bank | und füttert die Tauben
    Eine Gruppe von Menschen | steht | vor einer Kirche
    Das Mädchen mit dem Hut | schaut in ein Buch | unter einem großen Baum
    Ein Radfahrer | fährt die Straße hinunter | an mehreren geparkten Autos vorbei
    Drei Kinder | springen ins Wasser | von einem Steg aus Holz
    Ein Mann mit Brille | kocht etwas | in einer kleinen Küche
    Eine weiße Katze | schläft | zwischen zwei Kissen auf dem Sofa
    """,
    "french": """
    Un chien brun | court dans un pré | avec un bâton dans la gueule
    Deux jeunes garçons | jouent au football | sur une plage de sable
    Une femme en manteau rouge | attend | à l'arrêt de bus
    Un vieil homme | est assis sur un banc | et nourrit les pigeons
    Un groupe de personnes | se tient | devant une église
    La fille au chapeau | regarde un livre | sous un grand arbre
    Un cycliste | descend la rue | près de plusieurs voitures garées
    Trois enfants | sautent dans l'eau | depuis un ponton en bois
    Un homme qui porte des lunettes | prépare un plat | dans une petite cuisine
    Un chat blanc | dort | entre deux coussins sur le canapé
    """,
    "spanish": """
    Un perro marrón | corre por un prado | con un palo en la boca
    Dos niños pequeños | juegan al fútbol | en una playa de arena
    Una mujer con un abrigo rojo | espera | en la parada del autobús
    Un hombre mayor | está sentado en un banco | y da de comer a las palomas
    Un grupo de personas | está de pie | delante de una iglesia
    La niña del sombrero | mira un libro | bajo un árbol grande
    Un ciclista | baja por la calle | junto a varios coches aparcados
    Tres niños | saltan al agua | desde un muelle de madera
    Un hombre con gafas | cocina algo | en una cocina pequeña
    Un gato blanco | duerme | entre dos cojines en el sofá
    """,
    "portuguese": """
    Um cão castanho | corre por um campo | com um pau na boca
    Dois meninos | jogam futebol | em uma praia de areia
    Uma mulher de casaco vermelho | espera | na parada do ônibus
    Um homem velho | está sentado em um banco | e dá comida aos pombos
    Um grupo de pessoas | está de pé | em frente a uma igreja
    A menina do chapéu | olha para um livro | embaixo de uma árvore grande
    Um ciclista | desce a rua | ao lado de vários carros estacionados
    Três crianças | pulam na água | de um cais de madeira
    Um homem de óculos | cozinha alguma coisa | em uma cozinha pequena
    Um gato branco | dorme | entre duas almofadas no sofá
    """,
    "italian": """
    Un cane marrone | corre in un prato | con un bastone in bocca
    Due ragazzi | giocano a calcio | su una spiaggia di sabbia
    Una donna con un cappotto rosso | aspetta | alla fermata dell'autobus
    Un uomo anziano | è seduto su una panchina | e dà da mangiare ai piccioni
    Un gruppo di persone | sta in piedi | davanti a una chiesa
    La ragazza con il cappello | guarda un libro | sotto un grande albero
    Un ciclista | scende per la strada | accanto ad alcune auto parcheggiate
    Tre bambini | saltano nell'acqua | da un molo di legno
    Un uomo con gli occhiali | cucina qualcosa | in una piccola cucina
    Un gatto bianco | dorme | tra due cuscini sul divano
    """,
    "dutch": """
    Een bruine hond | rent door een weiland | met een stok in zijn bek
    Twee kleine jongens | spelen voetbal | op een zandstrand
    Een vrouw in een rode jas | wacht | bij de bushalte
    Een oude man | zit op een bank | en voert de duiven
    Een groep mensen | staat | voor een kerk
    Het meisje met de hoed | kijkt in een boek | onder een grote boom
    Een fietser | rijdt door de straat | langs een rij geparkeerde auto's
    Drie kinderen | springen in het water | van een houten steiger
    Een man met een bril | kookt iets | in een kleine keuken
    Een witte kat | slaapt | tussen twee kussens op de bank
    """,
    "swedish": """
    En brun hund | springer över en äng | med en pinne i munnen
    Två små pojkar | spelar fotboll | på en sandstrand
    En kvinna i röd kappa | väntar | vid busshållplatsen
    En gammal man | sitter på en bänk | och matar duvorna
    En grupp människor | står | framför en kyrka
    Flickan med hatten | tittar i en bok | under ett stort träd
    En cyklist | kör nerför gatan | förbi några parkerade bilar
    Tre barn | hoppar i vattnet | från en brygga av trä
    En man med glasögon | lagar mat | i ett litet kök
    En vit katt | sover | mellan två kuddar i soffan
    """,
    "danish": """
    En brun hund | løber over en mark | med en pind i munden
    To små drenge | spiller fodbold | på en sandstrand
    En kvinde i en rød frakke | venter | ved busstoppestedet
    En gammel mand | sidder på en bænk | og fodrer duerne
    En gruppe mennesker | står | foran en kirke
    Pigen med hatten | kigger i en bog | under et stort træ
    En cyklist | kører ned ad gaden | forbi nogle parkerede biler
    Tre børn | hopper i vandet | fra en bro af træ
    En mand med briller | laver mad | i et lille køkken
    En hvid kat | sover | mellem to puder i sofaen
    """,
    "polish": """
    Brązowy pies | biegnie przez łąkę | z patykiem w pysku
    Dwaj mali chłopcy | grają w piłkę | na piaszczystej plaży
    Kobieta w czerwonym płaszczu | czeka | na przystanku
    Starszy mężczyzna | siedzi na ławce | i karmi gołębie
    Grupa ludzi | stoi | przed kościołem
    Dziewczynka w kapeluszu | patrzy na książkę | pod dużym drzewem
    Rowerzysta | jedzie po ulicy | obok zaparkowanych samochodów
    Troje dzieci | skacze do wody | z drewnianego pomostu
    Mężczyzna w okularach | gotuje coś | w małej kuchni
    Biały kot | śpi | między dwiema poduszkami na kanapie
    """,
    "czech": """
    Hnědý pes | běží přes louku | s klackem v tlamě
    Dva malí kluci | hrají fotbal | na písečné pláži
    Žena v červeném kabátě | čeká | na zastávce autobusu
    Starý muž | sedí na lavičce | a krmí holuby
    Skupina lidí | stojí | před kostelem
    Dívka v klobouku | se dívá do knihy | pod velkým stromem
    Cyklista | jede po ulici | kolem zaparkovaných aut
    Tři děti | skáčou do vody | z dřevěného mola
    Muž s brýlemi | vaří | v malé kuchyni
    Bílá kočka | spí | mezi dvěma polštáři na pohovce
    """,
    "russian": """
    Коричневая собака | бежит по лугу | с палкой в зубах
    Два маленьких мальчика | играют в футбол | на песчаном пляже
    Женщина в красном пальто | ждёт | на остановке
    Пожилой мужчина | сидит на скамейке | и кормит голубей
    Группа людей | стоит | перед церковью
    Девочка в шляпе | смотрит в книгу | под большим деревом
    Велосипедист | едет по улице | мимо машин у дома
    Трое детей | прыгают в воду | с деревянного причала
    Мужчина в очках | готовит еду | на маленькой кухне
    Белая кошка | спит | между двумя подушками на диване
    """,
    "turkish": """
    Kahverengi bir köpek | ağzında bir sopa ile | çayırda koşuyor
    İki küçük çocuk | bir plajda | futbol oynuyor
    Kırmızı paltolu bir kadın | durakta | otobüs bekliyor
    Yaşlı bir adam | bir bankta oturuyor | ve güvercinleri besliyor
    Bir grup insan | bir kilisenin önünde | ayakta duruyor
    Şapkalı bir kız | büyük bir ağacın altında | bir kitaba bakıyor
    Bir bisikletçi | park etmiş arabaların yanında | yolda gidiyor
    Üç çocuk | tahta bir iskele üzerinden | suya atlıyor
    Gözlüklü bir adam | küçük bir mutfakta | yemek yapıyor
    Beyaz bir kedi | iki yastık arasında | koltukta uyuyor
    """,
}
OTHERS = {
    "hungarian": """
    Egy barna kutya | fut a mezőn | bottal a szájában
    Két kisfiú | a labdával játszik | a homokos parton
    Egy piros kabátos nő | vár | a buszmegállóban
    Egy idős férfi | ül egy padon | és a galambokat eteti
    Egy csoport ember | áll | a templom előtt
    A kalapos lány | egy könyvet néz | a nagy fa alatt
    Egy kerékpáros | megy az úton | a parkoló autók mellett
    Három gyerek | ugrik a vízbe | a stégről
    Egy szemüveges férfi | főz | a kis konyhában
    Egy fehér macska | alszik | a kanapén két párna között
    """,
    "finnish": """
    Ruskea koira | juoksee niityllä | keppi suussaan
    Kaksi pientä poikaa | pelaa jalkapalloa | hiekkarannalla
    Punatakkinen nainen | on odottamassa | bussipysäkillä
    Vanha mies | istuu penkillä | ja syöttää puluja
    Joukko ihmisiä | on seisomassa | kirkon edessä
    Hattupäinen tyttö | katsoo kirjaa | suuren puun alla
    Pyöräilijä | ajaa katua pitkin | pysäköityjen autojen ohi
    Kolme lasta | hyppää veteen | laiturilta
    Silmälasipäinen mies | on laittamassa ruokaa | pienessä keittiössä
    Valkoinen kissa | nukkuu | sohvalla kahden tyynyn välissä
    """,
    "indonesian": """
    Seekor anjing coklat | berlari di padang rumput | dengan tongkat di mulutnya
    Dua anak laki-laki | sedang bermain bola | di pantai berpasir
    Seorang wanita yang memakai mantel merah | sedang menunggu | di halte bus
    Seorang pria tua | duduk di bangku | dan memberi makan burung
    Sekelompok orang | sedang berdiri | di depan gereja
    Gadis yang memakai topi | sedang melihat buku | di bawah pohon besar
    Seorang pengendara sepeda | lewat di jalan | dengan mobil di sampingnya
    Tiga anak | melompat ke air | di dermaga kayu
    Seorang pria berkacamata | sedang memasak | di dapur kecil
    Seekor kucing putih | tidur | di antara dua bantal di sofa
    """,
}
REPORTS = """
No acute cardiopulmonary abnormality | Heart size normal | Lungs clear
Mild cardiomegaly | No pleural effusion or pneumothorax | Stable exam
Low lung volumes | Bibasilar atelectasis | No focal consolidation
Right lower lobe opacity | Small effusion | Normal mediastinal contour
Degenerative changes of the spine | No fracture | Clear costophrenic angles
Endotracheal tube in place | Tip above carina | Unchanged left effusion
Hyperinflated lungs | Flattened diaphragms | Findings of emphysema
Calcified granuloma | Left upper lobe | No change since prior
Normal heart | Normal vasculature | Bony thorax intact
Interval removal of chest tube | Tiny apical pneumothorax | Improved aeration
"""
TITLES = """
Red bus | Old town | Evening light
Mountain lake | Early morning | Clouds over water
Grandmother's kitchen | Apple pie | Sunday
Lighthouse | Winter storm | North coast
Street market | Fresh fruit | Summer heat
Kite festival | Blue sky | Happy children
Railway bridge | Autumn leaves | Fog in valley
Wedding day | Two rings | White roses
Sleeping cat | Window seat | Warm afternoon
Harbour at night | Fishing boats | Reflections of lamps
"""


def captions(parts: str, number: int = 1000) -> list[str]:
    """The first `number` combinations of these parts, at most 1,000, beginning with the captions as written."""
    rows = [[part.strip() for part in line.split("|")] for line in parts.strip().splitlines()]
    columns = [*zip(*rows, strict=True)]
    size = len(rows)
    places = ((first, (first + one) % size, (first + two) % size) for one, two, first in product(range(size), repeat=3))
    texts = (" ".join(column[place] for column, place in zip(columns, each, strict=True)) for each in places)
    return [f"{text}." for text in islice(texts, number)]


def plain(text: str) -> str:
    """The words of a caption in letters that COCO's tokenizer keeps, which then need not start."""
    return " ".join(re.sub("[^a-z ]", "", text.lower()).split())
